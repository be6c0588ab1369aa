//! Sketches: boxes, arrows, bars and text at given places, for pictures that are not curves.

use super::draw::{svg, text, Area, Failed, Name, Who, FINE, INK};
use crate::error::Error;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

/// Length of an arrow's head.
const HEAD: f64 = 9.0;

/// A place in a picture, from its upper left corner.
pub type Place = (i32, i32);

/// One part of a sketch.
#[derive(Clone, Debug)]
pub enum Shape {
    /// A rectangle from one corner to the opposite one: its edge, or filled.
    Box { from: Place, to: Place, who: Who, is_filled: bool },
    /// A line with a head at its end.
    Arrow { from: Place, to: Place },
    /// A line through these places.
    Line { through: Vec<Place>, who: Who },
    /// A text whose middle is at the height of the place.
    Words { at: Place, side: Side, words: String },
}

/// The side of its place on which a text stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Right,
    Middle,
    Left,
}

/// A picture made of shapes, the later ones over the earlier ones.
#[derive(Clone, Debug)]
pub struct Sketch {
    /// Its title, for readers who cannot see it.
    pub title: &'static str,
    pub width: u32,
    pub height: u32,
    pub shapes: Vec<Shape>,
}

impl Sketch {
    /// An empty picture.
    pub fn new(title: &'static str, (width, height): (u32, u32)) -> Sketch {
        Sketch { title, width, height, shapes: Vec::new() }
    }

    /// Adds a text.
    pub fn say(&mut self, at: Place, side: Side, words: impl Into<String>) {
        self.shapes.push(Shape::Words { at, side, words: words.into() });
    }

    /// Adds the edge of a rectangle.
    pub fn frame(&mut self, from: Place, to: Place, who: Who) {
        self.shapes.push(Shape::Box { from, to, who, is_filled: false });
    }

    /// Adds a filled rectangle.
    pub fn fill(&mut self, from: Place, to: Place, who: Who) {
        self.shapes.push(Shape::Box { from, to, who, is_filled: true });
    }

    /// Draws it as SVG.
    pub fn draw(&self) -> Result<String, Error> {
        let name = Name { letter: "", title: self.title };
        svg(name, (self.width, self.height), |area| self.shapes.iter().try_for_each(|shape| shape.draw(area)))
    }
}

impl Shape {
    fn draw(&self, area: &Area) -> Result<(), Failed> {
        match self {
            Shape::Box { from, to, who, is_filled: true } => {
                area.draw(&Rectangle::new([fine(*from), fine(*to)], who.colours().0.filled()))
            }
            // An edge of the backend's own is one dot wide.
            Shape::Box { from: (left, top), to: (right, bottom), who, is_filled: false } => {
                let corners = [(*left, *top), (*right, *top), (*right, *bottom), (*left, *bottom), (*left, *top)];
                area.draw(&PathElement::new(corners.map(fine), who.colours().0.stroke_width(3)))
            }
            Shape::Arrow { from, to } => {
                area.draw(&PathElement::new([fine(*from), fine(*to)], INK.stroke_width(3)))?;
                area.draw(&Polygon::new(head(*from, *to).map(fine), INK.filled()))
            }
            Shape::Line { through, who } => {
                let points: Vec<Place> = through.iter().copied().map(fine).collect();
                area.draw(&PathElement::new(points, who.colours().0.stroke_width(4)))
            }
            Shape::Words { at, side, words } => {
                let side = match side {
                    Side::Right => HPos::Left,
                    Side::Middle => HPos::Center,
                    Side::Left => HPos::Right,
                };
                area.draw(&Text::new(words.clone(), fine(*at), text(12, INK, side)))
            }
        }
    }
}

fn fine((x, y): Place) -> Place {
    (x * FINE, y * FINE)
}

/// The corners of the head of an arrow.
fn head(from: Place, to: Place) -> [Place; 3] {
    let (x, y) = (f64::from(to.0), f64::from(to.1));
    let (across, down) = (x - f64::from(from.0), y - f64::from(from.1));
    let length = across.hypot(down).max(1.0);
    let (across, down) = (HEAD * across / length, HEAD * down / length);
    let corner = |side: f64| ((x - across - side * down / 2.0) as i32, (y - down + side * across / 2.0) as i32);
    [to, corner(1.0), corner(-1.0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_of_an_arrow_points_where_it_goes() {
        assert_eq!(head((0, 0), (100, 0)), [(100, 0), (91, 4), (91, -4)]);
        assert_eq!(head((10, 100), (10, 0)), [(10, 0), (14, 9), (5, 9)]);
        assert_eq!(head((5, 5), (5, 5))[0], (5, 5));
    }

    #[test]
    fn a_sketch_is_a_picture_with_its_words() {
        let mut sketch = Sketch::new("two processes", (200, 100));
        sketch.say((10, 10), Side::Right, "a <process> & more");
        sketch.frame((10, 20), (90, 80), Who::Tail);
        let picture = sketch.draw().expect("it can be drawn");
        assert!(picture.starts_with("<svg role=\"img\" aria-label=\"two processes\" "), "{picture}");
        assert!(picture.contains("a &lt;process&gt; &amp; more"), "{picture}");
        assert_eq!(picture.matches("<polyline").count(), 1, "{picture}");
    }
}
