//! A bundle's bells: one page for the peers of its own trusted class, and one for each foreign peer. A foreign peer that scribbles
//! over its page rings only its own bell.

use weft_shm::BellPage;
use weft_wire::path::Bells;

/// The bell pages of a bundle.
#[derive(Debug)]
pub(crate) struct Pages {
    trusted: BellPage,
    /// A trusted peer has been added. Until then nobody rings there, and the page takes no memory.
    has_trusted: bool,
    foreign: Vec<ForeignPage>,
    /// The foreign page to check next. Each poll checks one, so that their number costs nothing; before the bundle sleeps, all are
    /// checked.
    next: usize,
    sleeps: u32,
    is_armed: bool,
}

#[derive(Debug)]
struct ForeignPage {
    page: BellPage,
    /// The index of the session whose peer has the page.
    session: u32,
}

impl Pages {
    pub fn new(trusted: BellPage) -> Pages {
        Pages { trusted, has_trusted: false, foreign: Vec::new(), next: 0, sleeps: 0, is_armed: false }
    }

    /// A session begins, whose peer was given a page of its own if it is foreign. That page's bell 0 is the session's.
    pub fn add(&mut self, session: u32, page: Option<BellPage>) {
        let Some(mut page) = page else {
            if self.is_armed && !self.has_trusted {
                self.trusted.arm();
            }
            self.has_trusted = true;
            return;
        };
        if self.is_armed {
            page.arm();
        }
        self.foreign.push(ForeignPage { page, session });
    }

    /// A session has ended.
    pub fn remove(&mut self, session: u32) {
        self.foreign.retain(|f| f.session != session);
    }

    /// Out of line: most bundles have none.
    #[inline(never)]
    fn collect_foreign(&mut self, rung: &mut impl FnMut(u32)) {
        // The last check before sleep covers all pages: a peer that rang before we armed sends no wakeup.
        let looks = if self.is_armed { self.foreign.len() } else { 1 };
        for _ in 0..looks {
            self.next = if self.next + 1 < self.foreign.len() { self.next + 1 } else { 0 };
            let Some(ForeignPage { page, session }) = self.foreign.get(self.next) else { return };
            page.collect(1, |_| rung(*session));
        }
    }

    /// How often the bundle has gone to sleep. Wraps around.
    pub fn sleeps(&self) -> u32 {
        self.sleeps
    }
}

impl Bells for Pages {
    #[inline]
    fn collect(&mut self, in_use: u32, mut rung: impl FnMut(u32)) {
        if self.has_trusted {
            self.trusted.collect(in_use, &mut rung);
        }
        if !self.foreign.is_empty() {
            self.collect_foreign(&mut rung);
        }
    }

    fn arm(&mut self) {
        self.sleeps = self.sleeps.wrapping_add(1);
        self.is_armed = true;
        if self.has_trusted {
            self.trusted.arm();
        }
        self.foreign.iter_mut().for_each(|f| f.page.arm());
    }

    fn disarm(&mut self) {
        self.is_armed = false;
        if self.has_trusted {
            self.trusted.disarm();
        }
        self.foreign.iter_mut().for_each(|f| f.page.disarm());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_shm::Bell;

    #[test]
    fn the_last_check_before_sleep_covers_all_bells() {
        let page = || BellPage::create().expect("a page");
        let bell = |page: &BellPage| Bell::open(page.fd().try_clone_to_owned().expect("dup"), 0).expect("a bell");
        let mut pages = Pages::new(page());
        let given = [5, 6, 7].map(|session| (session, page()));
        let mut bells = given.each_ref().map(|(_, page)| bell(page));
        given.into_iter().for_each(|(session, page)| pages.add(session, Some(page)));
        assert_eq!(bells.each_mut().map(Bell::ring), [false; 3], "nobody sleeps");
        pages.arm();
        let mut rung = Vec::new();
        pages.collect(8, |session| rung.push(session));
        rung.sort_unstable();
        assert_eq!(rung, [5, 6, 7]);
        pages.disarm();
        // While the bundle is awake, each poll checks one page.
        assert_eq!(bells.each_mut().map(Bell::ring), [false; 3]);
        for seen in 1..=3 {
            rung.clear();
            pages.collect(8, |session| rung.push(session));
            assert_eq!(rung.len(), 1, "page {seen}");
        }
    }
}
