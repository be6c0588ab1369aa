//! Many programs that make endpoints, bind them, send and free in random order: nothing is left at the end, and each request is accounted for.

use crate::daemon::{wait_until, Daemon, Folder, BOUND};
use crate::players::{orders, tell, Player, ANSWER, ECHO, KEY};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::mpsc::TryRecvError;
use std::time::Duration;
use weft::{Admission, Bundle, Endpoint, MessageKind, Name, Node, SendError};

/// Few frames, so that endpoints take turns. Room for many more endpoints than a program has: a freed endpoint keeps its place until all its peers
/// have heard of its end, and on a loaded machine that takes long.
const CONFIGURATION: &str = "frames = 16\nfile_mib = 256\n[network]\naddress = \"none\"\n";

/// Users of programs, if this process may start programs as other users.
const USERS: [u32; 3] = [65_531, 65_532, 65_533];

/// Endpoints of a program, entries in the table of each, and names that it remembers.
const ENDPOINTS: usize = 6;
const ENTRIES: u32 = 4;
const NAMES: usize = 64;

/// Requests of an endpoint that have not ended, at most.
const UNDER_WAY_MOST: usize = 32;

struct Dice(u64);

impl Dice {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % most.max(1) as u64) as usize
    }
}

fn contents(number: u32) -> Vec<u8> {
    const SIZES: [usize; 8] = [0, 8, 28, 29, 64, 300, 4096, 20_000];
    vec![number as u8; SIZES[number as usize % SIZES.len()]]
}

/// What a program knows, and its handlers.
#[derive(Default)]
struct Book {
    /// Requests that have not ended, by number, with their endpoints.
    under_way: BTreeMap<u32, u32>,
    answered: u64,
    returned: u64,
    /// Requests of endpoints that were freed meanwhile: nobody learns their fate.
    left: u64,
    /// Names that others sent, including names of endpoints that are gone.
    names: Vec<Name>,
    told: usize,
    /// The names that it sends to others.
    own: Vec<Name>,
    answers: usize,
    /// The last request that came for each binding, which is a process and a number.
    came: BTreeMap<(u32, u32), u32>,
    came_again: u64,
}

impl Book {
    fn end(&mut self, number: u32) {
        assert!(self.under_way.remove(&number).is_some(), "request {number} ends twice");
    }

    fn note_name(&mut self, name: Name) {
        self.told += 1;
        match self.names.len() < NAMES {
            true => self.names.push(name),
            false => self.names[self.told % NAMES] = name,
        }
    }
}

/// An endpoint of a program.
struct Place {
    endpoint: Endpoint,
    /// How many endpoints this program had made before.
    serial: u32,
    /// The binding of each entry, numbered across all entries.
    bound: [Option<u32>; ENTRIES as usize],
}

/// A program of the test.
struct Walker {
    bundle: Bundle,
    book: Rc<RefCell<Book>>,
    places: Vec<Place>,
    dice: Dice,
    who: u32,
    numbers: u32,
    serials: u32,
    bindings: u32,
    done: [u64; 4],
}

impl Walker {
    fn new(seed: u64) -> Walker {
        let bundle = Bundle::new(&Node::new().expect("a node")).expect("a bundle");
        let (book, who) = (Rc::default(), std::process::id());
        Walker {
            bundle,
            book,
            places: Vec::new(),
            dice: Dice(seed),
            who,
            numbers: 0,
            serials: 0,
            bindings: 0,
            done: [0; 4],
        }
    }

    fn create(&mut self) {
        let (bundle, book) = (&mut self.bundle, &self.book);
        let endpoint = bundle.endpoint(KEY).expect("an endpoint");
        bundle.set_admission(endpoint, Admission::AnyUser).expect("an endpoint");
        let noted = book.clone();
        let answer = move |m: &mut weft::am::Message<'_>| {
            let (number, who, binding) = (m.args()[0], m.args()[1], m.args()[2]);
            assert_eq!(m.payload(), contents(number));
            let mut noted = noted.borrow_mut();
            let last = noted.came.insert((who, binding), number);
            noted.came_again += u64::from(last.is_some_and(|last| last >= number));
            noted.answers += 1;
            let name = noted.own.get(noted.answers % noted.own.len().max(1)).map(Name::to_string).unwrap_or_default();
            // A requester that has ended gets no answer.
            let _ = m.reply(ANSWER, m.args(), name.as_bytes());
        };
        bundle.on(endpoint, ECHO, answer).expect("on");
        let noted = book.clone();
        let heard = move |m: &mut weft::am::Message<'_>| {
            let mut noted = noted.borrow_mut();
            noted.end(m.args()[0]);
            noted.answered += 1;
            let name = std::str::from_utf8(m.payload()).expect("text").parse();
            name.into_iter().for_each(|name| noted.note_name(name));
        };
        bundle.on(endpoint, ANSWER, heard).expect("on");
        let noted = book.clone();
        let back = move |_: &mut weft::am::Context<'_>, back: weft::Returned| {
            // Replies come back, too.
            if back.kind == MessageKind::Request {
                let mut noted = noted.borrow_mut();
                noted.end(back.args[0]);
                noted.returned += 1;
                assert_eq!(back.payload, contents(back.args[0]), "it comes back with its contents");
            }
        };
        bundle.on_return(endpoint, back).expect("on");
        book.borrow_mut().own.push(bundle.name(endpoint).expect("a name"));
        self.places.push(Place { endpoint, serial: self.serials, bound: [None; ENTRIES as usize] });
        self.serials += 1;
        self.done[0] += 1;
    }

    fn bind(&mut self) {
        let at = self.dice.below(self.places.len());
        let entry = self.dice.below(ENTRIES as usize);
        let known = self.book.borrow().names.len();
        let Some(name) = self.book.borrow().names.get(self.dice.below(known)).copied() else { return };
        let place = &mut self.places[at];
        // Full while the entry has requests under way to another peer.
        if self.bundle.map(place.endpoint, entry as u32, name, KEY).is_ok() {
            place.bound[entry] = Some(self.bindings);
            self.bindings += 1;
            self.done[1] += 1;
        }
    }

    fn send(&mut self) {
        let at = self.dice.below(self.places.len());
        let entry = self.dice.below(ENTRIES as usize);
        let place = &self.places[at];
        let Some(binding) = place.bound[entry] else { return };
        let under_way = self.book.borrow().under_way.values().filter(|of| **of == place.serial).count();
        if under_way >= UNDER_WAY_MOST {
            return;
        }
        let args = [self.numbers, self.who, binding];
        match self.bundle.try_request(place.endpoint, entry as u32, ECHO, &args, &contents(self.numbers)) {
            Ok(()) => {
                self.book.borrow_mut().under_way.insert(self.numbers, place.serial);
                self.numbers += 1;
                self.done[2] += 1;
            }
            Err(SendError::Full) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Frees an endpoint, except the first one, which others know from the beginning.
    fn free(&mut self, at: usize) {
        let place = self.places.swap_remove(at);
        let mut book = self.book.borrow_mut();
        let name = self.bundle.name(place.endpoint).expect("a name");
        book.own.retain(|own| *own != name);
        let before = book.under_way.len();
        book.under_way.retain(|_, of| *of != place.serial);
        book.left += (before - book.under_way.len()) as u64;
        drop(book);
        self.bundle.free(place.endpoint).expect("freed");
        self.done[3] += 1;
    }

    /// One step, of a random kind. Returns whether something was done.
    fn step(&mut self) -> bool {
        let before: u64 = self.done.iter().sum();
        match self.dice.below(40) {
            0 if self.places.len() < ENDPOINTS => self.create(),
            1 if self.places.len() > 1 => {
                let at = 1 + self.dice.below(self.places.len() - 1);
                self.free(at);
            }
            2..=7 => self.bind(),
            _ => self.send(),
        }
        self.done.iter().sum::<u64>() > before
    }
}

/// The role of such a program: takes so many steps, once it knows the others. Orders: `know NAME`, `go`, `stop`. It prints its name,
/// `done`, and, when it has stopped and nothing of its own is under way, `quiet`. At the end of its orders it prints the fate of all.
pub fn walk(words: &str) {
    let (seed, steps) = words.split_once(' ').expect("two words");
    let (seed, steps): (u64, u64) = (seed.parse().expect("a number"), steps.parse().expect("a number"));
    let mut walker = Walker::new(seed);
    walker.create();
    tell(walker.bundle.name(walker.places[0].endpoint).expect("a name"));
    let orders = orders();
    let (mut left, mut stops, mut is_quiet) = (0, false, false);
    loop {
        match orders.try_recv() {
            Ok(order) => match order.split(' ').collect::<Vec<_>>()[..] {
                ["know", name] => walker.book.borrow_mut().note_name(name.parse().expect("a name")),
                ["go"] => left = steps,
                ["stop"] => stops = true,
                _ => panic!("{order}"),
            },
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => break,
        }
        let mut went = 0;
        for _ in 0..16.min(left) {
            went += u64::from(walker.step());
        }
        if left > 0 {
            left = left.saturating_sub(went);
            if left == 0 {
                tell("done");
            }
        }
        if walker.bundle.poll() == 0 && went == 0 {
            walker.bundle.wait(Some(Duration::from_millis(1)));
        }
        if stops && !is_quiet && walker.book.borrow().under_way.is_empty() {
            is_quiet = true;
            tell("quiet");
        }
    }
    while !walker.places.is_empty() {
        walker.free(0);
    }
    let book = walker.book.borrow();
    let (sent, ended) = (u64::from(walker.numbers), book.answered + book.returned + book.left);
    assert_eq!(sent, ended, "each request has ended, or its endpoint has");
    let [made, bound, _, freed] = walker.done;
    let Book { answered, returned, left, came_again, .. } = *book;
    tell(format!("{made} {bound} {sent} {freed} {answered} {returned} {left} {came_again}"));
}

fn seen(folder: &Folder) -> String {
    Player::start(folder, "tool", 0, "").hear()
}

/// Waits for a program to print certain words, however long its steps take.
fn hear_of(walker: &Player, words: &str) {
    loop {
        match walker.hear_within(10 * BOUND) {
            told if told == words => return,
            told => eprintln!("{told}"),
        }
    }
}

/// Runs so many programs that take so many steps each, all at the same time. Returns the daemon's resident memory in the middle and at the
/// end.
fn walk_all(programs: usize, steps: usize) -> [u64; 2] {
    const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
    eprintln!("seed {SEED:#x}");
    let folder = Folder::new();
    let daemon = Daemon::serve(&folder, CONFIGURATION);
    let (state, descriptors) = (seen(&folder), daemon.descriptors());
    let mut resident = Vec::new();
    let mut sums = [0u64; 8];
    // In two halves. Whatever the second one needs exists after the first one.
    for half in 0..2 {
        let mut walkers: Vec<Player> = (0..programs)
            .map(|number| {
                let seed = SEED.wrapping_mul((half * programs + number + 1) as u64);
                let words = format!("{seed} {}", steps / 2 / programs);
                Player::start(&folder, "walker", USERS[number % USERS.len()], &words)
            })
            .collect();
        let names: Vec<String> = walkers.iter().map(Player::hear).collect();
        for walker in &mut walkers {
            names.iter().for_each(|name| walker.order(&format!("know {name}")));
        }
        walkers.iter_mut().for_each(|walker| walker.order("go"));
        walkers.iter().for_each(|walker| hear_of(walker, "done"));
        walkers.iter_mut().for_each(|walker| walker.order("stop"));
        walkers.iter().for_each(|walker| hear_of(walker, "quiet"));
        walkers.iter_mut().for_each(Player::end_orders);
        for walker in walkers {
            let told = walker.hear();
            let numbers = told.split(' ').map(|number| number.parse::<u64>().expect("a number"));
            sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
            walker.finish();
        }
        wait_until("the daemon holds what it held", || seen(&folder) == state && daemon.descriptors() == descriptors);
        resident.push(daemon.resident_kib());
    }
    let violations = Player::start(&folder, "violations", 0, "").hear();
    let [made, bound, sent, freed, answered, returned, left, came_again] = sums;
    let operations = made + bound + sent + freed;
    eprintln!(
        "{operations} operations: {made} made, {bound} bound, {sent} sent, {freed} freed; {answered} answered, {returned} returned, {left} left; \
         {resident:?} KiB resident; {state}"
    );
    assert_eq!((sent, came_again, &*violations), (answered + returned + left, 0, "0"));
    assert!(
        operations >= steps as u64 * 99 / 100 && answered > sent / 4 && returned > 0 && freed > 0,
        "all of it happens"
    );
    [resident[0], resident[1]]
}

#[test]
fn programs_that_create_bind_send_and_free_at_random_leave_nothing() {
    walk_all(8, 20_000);
}

#[test]
#[ignore = "takes minutes"]
fn ten_million_random_operations_of_fifty_programs_leave_nothing() {
    let [in_the_middle, at_the_end] = walk_all(50, 10_000_000);
    assert!(at_the_end <= in_the_middle + 1024, "{in_the_middle} KiB resident, then {at_the_end}");
}
