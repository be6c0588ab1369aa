//! The drawing: lines of text for a screen of any size.

use super::rates::{BundleRow, FlowRow, MemoryRow, PeerRow, Picture, ProcessRow};
use super::terminal::{Key, Size};
use super::Options;
use crate::bench::table::digits;
use crate::held::Held;
use crate::output::wrap;
use crate::regions;
use std::fmt::Write;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};
use weft::status::{Activity, Path};
use weft::Name;

/// Lines around the rows: the totals, the column names and the keys.
const AROUND: usize = 3;

/// Between two columns.
const GAP: &str = "  ";

/// Peers' names are shortened before a column is left out, down to this width.
const PEER_LEAST: usize = 16;

/// Columns with this value or a higher one are left out before names are shortened.
const LEAVES_BEFORE_NAMES: u8 = 5;

/// The indentation of a heading's second and later lines.
const INDENT: &str = "    ";

const KEYS: &str = "q quit  s sort  p pause  h help";

const HELP: &str = "\
q quit   s sort by another column   p or space pause   h this page
arrows and page keys scroll

A line for each bundle of a process (of all users' if root asks), then one for
each flow: from an endpoint of the bundle to one of a peer's. ← is a peer that
only sends here. An endpoint for remote memory has a line of its own: what peers
do to its regions, as its own process executes it. weftd comes first, if there
is one, with a line for each endpoint that is active there.

messages/s   requests and one-way messages of the flow
bytes/s      bytes written to the path, with headers; told once for its flows
asked        requests under way to the peer, of 32
asking       requests of the peer's that were not answered
credit       one-way messages that may be sent before the peer grants more
not taken    bytes that the peer's program has not read
trip         the round trip of the network, as the channel measures it
limited by   why a message would wait now; `weft explain NAME` says what helps

Each look costs each process one wake-up, and messages nothing; while it is
paused nothing is asked.";

const REVERSED: &str = "\x1b[7m";
const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";

/// The order of lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Order {
    /// Most messages a second.
    #[default]
    Rate,
    /// Most bytes a second.
    Bytes,
    /// Limited flows first.
    Limit,
    /// The lowest process number.
    Process,
}

impl Order {
    fn next(self) -> Order {
        match self {
            Order::Rate => Order::Bytes,
            Order::Bytes => Order::Limit,
            Order::Limit => Order::Process,
            Order::Process => Order::Rate,
        }
    }

    fn in_words(self) -> &'static str {
        match self {
            Order::Rate => "messages/s",
            Order::Bytes => "bytes/s",
            Order::Limit => "limit",
            Order::Process => "process",
        }
    }
}

/// The settings of the view.
#[derive(Debug)]
pub struct View {
    order: Order,
    pub is_paused: bool,
    is_help: bool,
    /// The first line of the rows that is shown.
    from: usize,
}

impl View {
    pub fn new(options: &Options) -> View {
        View { order: options.sort, is_paused: false, is_help: false, from: 0 }
    }

    /// A key was pressed that does not end the command.
    pub fn press(&mut self, key: Key, size: Size) {
        let page = size.rows.saturating_sub(AROUND).max(1);
        match key {
            Key::Letter('s') => self.order = self.order.next(),
            Key::Letter('p' | ' ') => self.is_paused = !self.is_paused,
            Key::Letter('h' | '?') => (self.is_help, self.from) = (!self.is_help, 0),
            Key::Up | Key::Letter('k') => self.from = self.from.saturating_sub(1),
            Key::Down | Key::Letter('j') => self.from = self.from.saturating_add(1),
            Key::PageUp => self.from = self.from.saturating_sub(page),
            Key::PageDown => self.from = self.from.saturating_add(page),
            Key::Letter(_) => {}
        }
    }

    /// The screen: no more lines than it has rows, none wider than it is.
    pub fn lines(&mut self, picture: &Option<Picture>, size: Size) -> Vec<String> {
        let Size { columns, rows } = size;
        let table = picture.as_ref().map(|picture| self.table(picture, columns));
        let (names, body) = match (&table, self.is_help) {
            (_, true) => ("", HELP.lines().flat_map(|line| broken(line, columns)).collect()),
            (Some(table), false) => (table.names.as_str(), table.lines.clone()),
            (None, false) => ("", vec![fit("looking ...", columns)]),
        };
        let space = rows.saturating_sub(AROUND);
        self.from = self.from.min(body.len().saturating_sub(space));
        let mut lines = vec![format!("{BOLD}{}{PLAIN}", fit_words(&self.sum(picture), columns))];
        lines.push(format!("{REVERSED}{}{PLAIN}", pad(&fit(names, columns), columns, true)));
        let is_cut = body.len() > space;
        let (first, all) = (self.from + 1, body.len());
        lines.extend(body.into_iter().skip(self.from).take(space));
        lines.resize(lines.len().max(rows.saturating_sub(1)), String::new());
        let more =
            if is_cut { format!("   lines {first} to {} of {all}", all.min(first + space - 1)) } else { String::new() };
        lines.push(fit_words(&format!("{KEYS}{more}"), columns));
        lines.truncate(rows);
        lines
    }

    /// The whole table, for output without a screen.
    pub fn text(&self, picture: &Picture) -> String {
        let table = self.table(picture, usize::MAX);
        let head = [self.sum(&Some(picture.clone())), table.names];
        head.into_iter().chain(table.lines).fold(String::new(), |text, line| text + line.trim_end() + "\n")
    }

    /// The first line, with the totals.
    fn sum(&self, picture: &Option<Picture>) -> String {
        let mut text = format!("weft top by {}", self.order.in_words());
        if self.is_paused {
            text.push_str(", PAUSED");
        }
        let Some(picture) = picture else { return text };
        let bundles = || picture.processes.iter().flat_map(|process| &process.bundles);
        let endpoints: usize = bundles().map(|bundle| bundle.endpoints).sum();
        let rate = bundles().filter_map(|bundle| Some(bundle.rates?.out())).fold(0.0, |sum, rate| sum + rate);
        let (processes, es) = (picture.processes.len(), if picture.processes.len() == 1 { "" } else { "es" });
        let _ = write!(text, ": {processes} process{es}, {endpoints} endpoint{}", plural(endpoints));
        let _ = write!(text, ", {} messages/s", scaled(rate));
        if picture.of_others > 0 {
            let _ = write!(text, "; not shown: {} of other users", picture.of_others);
        }
        if picture.without_helper > 0 {
            let _ = write!(text, "; {} without a helper", picture.without_helper);
        }
        text
    }

    fn table(&self, picture: &Picture, columns: usize) -> Table {
        let daemon = picture.daemon.iter().flat_map(|row| row.lines(scaled));
        let mut lines: Vec<String> = daemon.flat_map(|line| broken(&line, columns)).collect();
        if picture.processes.is_empty() {
            let nobody = "no process of this user has a node of weft here that can be looked at";
            lines.extend(broken(nobody, columns));
            return Table { names: String::new(), lines };
        }
        let mut groups: Vec<Group<'_>> = picture.processes.iter().flat_map(groups).collect();
        groups.iter_mut().for_each(|group| group.sort(self.order));
        groups.sort_by(|a, b| {
            b.weight(self.order)
                .total_cmp(&a.weight(self.order))
                .then((a.process.pid, a.number()).cmp(&(b.process.pid, b.number())))
        });
        let table = Table::lay_out(&groups, columns);
        lines.extend(table.lines);
        Table { lines, ..table }
    }
}

/// A bundle with its flows, or a process that reported none.
struct Group<'a> {
    process: &'a ProcessRow,
    bundle: Option<&'a BundleRow>,
    rows: Vec<Row<'a>>,
}

/// A flow, or a peer that only sends here.
#[derive(Clone, Copy)]
struct Row<'a> {
    peer: &'a PeerRow,
    flow: Option<&'a FlowRow>,
    /// Whether this is the first flow of its path, which shows the path's figures.
    is_first: bool,
}

fn groups(process: &ProcessRow) -> Vec<Group<'_>> {
    let of_bundle = |bundle| Group { process, bundle: Some(bundle), rows: rows(bundle) };
    match &process.bundles[..] {
        [] => vec![Group { process, bundle: None, rows: Vec::new() }],
        bundles => bundles.iter().map(of_bundle).collect(),
    }
}

fn rows(bundle: &BundleRow) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    for peer in &bundle.peers {
        if peer.flows.is_empty() {
            rows.push(Row { peer, flow: None, is_first: true });
        }
        rows.extend(peer.flows.iter().enumerate().map(|(at, flow)| Row { peer, flow: Some(flow), is_first: at == 0 }));
    }
    rows
}

impl Group<'_> {
    fn sort(&mut self, order: Order) {
        if order != Order::Process {
            self.rows.sort_by(|a, b| b.weight(order).total_cmp(&a.weight(order)));
        }
    }

    fn weight(&self, order: Order) -> f64 {
        match order {
            Order::Process => 0.0,
            Order::Limit => self.rows.iter().map(|row| row.weight(order)).fold(0.0, f64::max),
            Order::Rate => self.bundle.and_then(|b| b.rates).map_or(0.0, |rates| rates.out() + rates.came()),
            Order::Bytes => self.rows.iter().filter(|row| row.is_first).map(|row| row.weight(order)).sum(),
        }
    }

    fn number(&self) -> Option<u32> {
        self.bundle.map(|bundle| bundle.bundle)
    }

    /// Its heading.
    fn heading(&self) -> String {
        let ProcessRow { title, uid, silent, .. } = self.process;
        let mut text = format!("{title}, user {uid}");
        let Some(bundle) = self.bundle else {
            let _ = write!(text, ": {}", silent.as_deref().unwrap_or("no bundle"));
            return text;
        };
        let _ = write!(text, ": bundle {} ", bundle.bundle);
        match (bundle.activity, bundle.age_ms) {
            (Activity::Polls, _) => text.push_str("polls"),
            (Activity::Waits, _) => text.push_str("waits"),
            (Activity::Computes, Some(age)) => _ = write!(text, "computes ({} s)", digits(age as f64 / 1e3)),
            (Activity::Computes, None) => text.push_str("computes, has reported nothing yet"),
        }
        let _ = write!(text, ", {} endpoint{}", bundle.endpoints, plural(bundle.endpoints));
        if let Some(rates) = bundle.rates {
            let _ = write!(text, ", in {}/s, out {}/s", scaled(rates.came()), scaled(rates.out()));
            for (rate, what) in [(rates.returned, "returned"), (rates.full, "told full")] {
                if rate > 0.0 {
                    let _ = write!(text, ", {what} {}/s", scaled(rate));
                }
            }
        }
        if bundle.not_served > 0 {
            let _ = write!(text, ", {} not served ({} messages wait)", bundle.not_served, bundle.parked);
        }
        if bundle.left_out > 0 {
            let _ = write!(text, ", {} more rows not shown", bundle.left_out);
        }
        text
    }
}

impl Row<'_> {
    fn weight(&self, order: Order) -> f64 {
        match order {
            Order::Process => 0.0,
            Order::Rate => self.flow.and_then(|flow| flow.messages_per_s).unwrap_or(0.0),
            Order::Bytes => self.peer.bytes_per_s.unwrap_or(0.0),
            Order::Limit => f64::from(u8::from(self.flow.is_some_and(|flow| flow.limited_by != Held::Nothing))),
        }
    }

    /// The cells, in the order of [`COLUMNS`].
    fn cells(&self) -> [String; COLUMNS.len()] {
        let Row { peer, flow, is_first } = *self;
        let to = match flow {
            None => format!("  ← {}", peer.peer),
            Some(row) if peer.flows.len() == 1 => format!("  {} → {}", row.flow.endpoint, peer.peer),
            Some(row) => {
                let number =
                    row.flow.name.parse::<Name>().map_or_else(|_| "?".to_owned(), |name| name.endpoint.0.to_string());
                format!("  {} → {}/{number}", row.flow.endpoint, peer.peer)
            }
        };
        let path = match (peer.path, &peer.address) {
            (Path::Memory, _) => "memory".to_owned(),
            (Path::Network, address) => format!("UDP {}", address.as_deref().unwrap_or_default()),
            (Path::Daemon, _) => "weftd".to_owned(),
        };
        let of_flow = |told: &dyn Fn(&FlowRow) -> String| flow.map(told).unwrap_or_default();
        let of_path = |told: String| if is_first { told } else { String::new() };
        [
            to,
            path,
            of_flow(&|row| row.messages_per_s.map_or_else(|| "-".to_owned(), scaled)),
            of_path(peer.bytes_per_s.map_or_else(|| "-".to_owned(), scaled)),
            of_flow(&|row| format!("{}/{}", row.flow.requests, row.flow.requests_most)),
            of_path(peer.asking.to_string()),
            of_flow(&|row| scaled(row.flow.credit_messages.into())),
            of_path(scaled(peer.not_taken_bytes as f64)),
            of_path(peer.round_trip_us.map_or_else(String::new, |us| format!("{} µs", digits(us)))),
            of_flow(&|row| match row.limited_by {
                Held::Nothing => String::new(),
                held => held.in_words().to_owned(),
            }),
        ]
    }
}

/// A column: its name, its alignment, and when it is left out of a narrow screen: the highest value first.
struct Column {
    name: &'static str,
    is_left: bool,
    leaves: u8,
}

const fn column(name: &'static str, is_left: bool, leaves: u8) -> Column {
    Column { name, is_left, leaves }
}

const COLUMNS: [Column; 10] = [
    column("  from → to", true, 0),
    column("path", true, 4),
    column("messages/s", false, 0),
    column("bytes/s", false, 2),
    column("asked", false, 3),
    column("asking", false, 7),
    column("credit", false, 5),
    column("not taken", false, 6),
    column("trip", false, 8),
    column("limited by", true, 1),
];

/// Lines, laid out.
struct Table {
    names: String,
    lines: Vec<String>,
}

impl Table {
    fn lay_out(groups: &[Group<'_>], columns: usize) -> Table {
        let cells: Vec<Vec<[String; COLUMNS.len()]>> =
            groups.iter().map(|group| group.rows.iter().map(Row::cells).collect()).collect();
        let mut widths = COLUMNS.map(|column| column.name.width());
        for row in cells.iter().flatten() {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.width());
            }
        }
        let shown = fit_columns(&mut widths, columns);
        let line = |cells: &[&str]| {
            let cell = |at: usize| if at == 0 { fit_name(cells[at], widths[at]) } else { fit(cells[at], widths[at]) };
            let cells: Vec<String> = shown.iter().map(|&at| pad(&cell(at), widths[at], COLUMNS[at].is_left)).collect();
            fit(cells.join(GAP).trim_end(), columns)
        };
        let mut lines = Vec::new();
        for (group, cells) in groups.iter().zip(&cells) {
            lines.extend(broken(&group.heading(), columns));
            let memory = group.bundle.iter().flat_map(|bundle| &bundle.memory);
            lines.extend(memory.flat_map(|row| broken(&memory_line(row), columns)));
            lines.extend(cells.iter().map(|row| line(&row.each_ref().map(String::as_str))));
        }
        Table { names: line(&COLUMNS.map(|column| column.name)), lines }
    }
}

/// The line of an endpoint for remote memory.
fn memory_line(row: &MemoryRow) -> String {
    let MemoryRow { endpoint, rates, told } = row;
    let mut text =
        format!("  {endpoint} remote memory: {}, {}", regions::many(told.regions, "region"), regions::size(told.bytes));
    match rates {
        Some(rates) => {
            let [writes, reads, atomics] = [rates.writes, rates.reads, rates.atomics].map(scaled);
            let [written, read] = [rates.bytes_written, rates.bytes_read].map(scaled_bytes);
            let _ = write!(text, ", writes {writes}/s ({written}), reads {reads}/s ({read}), atomics {atomics}/s");
            if rates.refused > 0.0 {
                let _ = write!(text, ", refused {}/s", scaled(rates.refused));
            }
        }
        None => text.push_str(", -"),
    }
    if told.pending > 0 {
        let _ = write!(text, ", {} under way to peers", regions::many(told.pending, "operation"));
    }
    text
}

/// The columns that fit. Columns of least importance are left out first, then the first column is shortened, then more are left
/// out.
fn fit_columns(widths: &mut [usize; COLUMNS.len()], columns: usize) -> Vec<usize> {
    let mut shown: Vec<usize> = (0..COLUMNS.len()).collect();
    loop {
        let all: usize = shown.iter().map(|&at| widths[at] + GAP.len()).sum::<usize>() - GAP.len();
        let over = all.saturating_sub(columns);
        let last = shown.iter().copied().max_by_key(|&at| COLUMNS[at].leaves).filter(|&at| COLUMNS[at].leaves > 0);
        let has_spare = last.is_some_and(|last| COLUMNS[last].leaves >= LEAVES_BEFORE_NAMES);
        let spare = if has_spare { 0 } else { widths[0].saturating_sub(PEER_LEAST) };
        if over <= spare {
            widths[0] -= over;
            return shown;
        }
        match last {
            Some(last) => shown.retain(|&at| at != last),
            None => return shown,
        }
    }
}

/// Breaks a text between words into lines of this width.
fn broken(text: &str, columns: usize) -> Vec<String> {
    // A word longer than the line is cut.
    wrap(&fit(text, usize::MAX), columns, INDENT).iter().map(|line| fit(line, columns)).collect()
}

/// As many words as fit.
fn fit_words(text: &str, columns: usize) -> String {
    let cut = fit(text, columns);
    match cut.strip_suffix('…').and_then(|cut| cut.rsplit_once(' ')) {
        Some((words, _)) => format!("{}…", words.trim_end()),
        None => cut,
    }
}

/// Shortens the name of a process: first drops the word *process*, then shortens the program. The number stays.
fn fit_name(text: &str, columns: usize) -> String {
    if fit(text, usize::MAX).width() <= columns {
        return fit(text, columns);
    }
    let short = text.replace(", process ", " ");
    match short.rsplit_once(' ') {
        Some((program, number)) if number.width() + PEER_LEAST / 2 <= columns && number != program => {
            format!("{} {number}", fit(program, columns - number.width() - 1))
        }
        _ => fit(&short, columns),
    }
}

/// As much of a text as fits, without invisible characters and those that change the direction of writing.
fn fit(text: &str, columns: usize) -> String {
    let seen = || text.chars().filter(|c| c.width().is_some_and(|width| width > 0));
    let width = |c: char| c.width().unwrap_or(0);
    if seen().map(width).sum::<usize>() <= columns {
        return seen().collect();
    }
    let mut left = columns.saturating_sub(1);
    let cut = seen().take_while(|c| {
        let fits = width(*c) <= left;
        left = left.saturating_sub(width(*c));
        fits
    });
    let mut cut: String = cut.collect();
    if columns > 0 {
        cut.push('…');
    }
    cut
}

/// Pads with spaces on one side.
fn pad(text: &str, columns: usize, is_left: bool) -> String {
    let spaces = " ".repeat(columns.saturating_sub(text.width()));
    if is_left {
        text.to_owned() + &spaces
    } else {
        spaces + text
    }
}

fn plural(n: usize) -> &'static str {
    if n == 1 {
        ""
    } else {
        "s"
    }
}

/// A number for display: three digits, and a letter for thousands, millions and billions.
fn scaled(value: f64) -> String {
    match value {
        v if v >= 999.5e6 => format!("{} G", digits(v / 1e9)),
        v if v >= 999.5e3 => format!("{} M", digits(v / 1e6)),
        v if v >= 999.5 => format!("{} k", digits(v / 1e3)),
        v => format!("{v:.0}"),
    }
}

/// The same for bytes.
fn scaled_bytes(value: f64) -> String {
    match value {
        v if v < 999.5 => format!("{v:.0} B"),
        v => scaled(v) + "B",
    }
}

#[cfg(test)]
mod tests {
    use super::super::rates::{MemoryRates, Rates};
    use super::*;
    use weft::status::{FlowTo, Limit, RemoteMemory};

    fn flow(messages_per_s: f64, limited_by: Held) -> FlowRow {
        let flow = FlowTo {
            endpoint: 0,
            name: String::new(),
            sent: 0,
            requests_sent: 0,
            requests: 3,
            requests_most: 32,
            credit_messages: 32_768,
            credit_bytes: 0,
            unstored: 0,
            wants_room: false,
            limit: Limit::Nothing,
        };
        FlowRow { messages_per_s: Some(messages_per_s), limited_by, because: String::new(), flow }
    }

    fn peer(name: &str, flows: Vec<FlowRow>) -> PeerRow {
        PeerRow {
            peer: name.to_owned(),
            path: Path::Memory,
            address: None,
            bytes_per_s: Some(64e6),
            not_taken_bytes: 128,
            asking: 0,
            round_trip_us: None,
            in_flight_bytes: None,
            window_bytes: None,
            flows,
        }
    }

    fn process(pid: u32, title: &str, peers: Vec<PeerRow>) -> ProcessRow {
        let bundle = BundleRow {
            bundle: 0,
            activity: Activity::Polls,
            age_ms: Some(0),
            endpoints: 1,
            not_served: 0,
            parked: 0,
            rates: None,
            memory: Vec::new(),
            peers,
            left_out: 0,
        };
        let (title, epoch) = (title.to_owned(), String::new());
        ProcessRow { pid: Some(pid), program: None, uid: 0, epoch, title, silent: None, bundles: vec![bundle] }
    }

    fn picture() -> Picture {
        let slow = process(1, "slow", vec![peer("gone", vec![]), peer("far", vec![flow(2.0, Held::Credit)])]);
        let fast = process(2, "fast 織機\u{202e}", vec![peer("slow", vec![flow(1.25e6, Held::Nothing)])]);
        Picture { processes: vec![slow, fast], daemon: None, of_others: 2, without_helper: 1 }
    }

    fn view(order: Order) -> View {
        View { order, is_paused: false, is_help: false, from: 0 }
    }

    /// A line as it is seen on the screen.
    fn seen(line: &str) -> String {
        [BOLD, REVERSED, PLAIN].iter().fold(line.to_owned(), |line, code| line.replace(code, ""))
    }

    #[test]
    fn no_line_is_wider_and_no_screen_higher_than_the_terminal() {
        for (columns, rows) in (0..140).flat_map(|columns| (0..12).map(move |rows| (columns, rows))) {
            for is_help in [false, true] {
                let mut view = View { is_help, from: 3, ..view(Order::Rate) };
                let lines = view.lines(&Some(picture()), Size { columns, rows });
                assert_eq!(lines.len(), rows, "{columns} x {rows}");
                for line in lines {
                    assert!(seen(&line).width() <= columns, "{columns} x {rows}: {line:?}");
                    assert!(!line.contains('\u{202e}'), "{line:?}");
                }
            }
        }
        assert_eq!(view(Order::Rate).lines(&None, Size { columns: 80, rows: 4 }).len(), 4);
    }

    #[test]
    fn no_word_is_cut_on_screens_of_80_and_120_columns() {
        let mut picture = picture();
        let mut far = peer("weft, process 1234567", vec![flow(1.25e6, Held::Application)]);
        (far.path, far.address, far.round_trip_us) =
            (Path::Network, Some("192.168.100.100:40000".to_owned()), Some(104.0));
        let mut stopped = process(4_000_000, "a-program-with-a-name, process 4000000", vec![]);
        stopped.bundles.clear();
        stopped.silent = Some(
            "stopped: the process was stopped by a signal and tells nothing until it goes on; `kill -CONT 4000000` lets it go on".to_owned(),
        );
        picture.processes.extend([stopped, process(3, "weft, process 3", vec![far])]);
        for columns in [80, 120] {
            let screen = |is_help| {
                let mut view = View { is_help, ..view(Order::Rate) };
                view.lines(&Some(picture.clone()), Size { columns, rows: 60 }).join("\n")
            };
            let text = screen(false);
            let words: Vec<&str> = text.split_whitespace().collect();
            for whole in ["1234567", "application", "there", "4000000`", "on", "messages/s"] {
                assert!(words.contains(&whole), "{whole} at {columns}: {text}");
            }
            assert!(text.contains("→ weft, process 1234567"), "{text}");
            // The path column is left out before names are shortened.
            assert_eq!(words.contains(&"192.168.100.100:40000"), columns == 120, "{text}");
            let help = screen(true);
            assert!(HELP.lines().all(|line| help.contains(line)), "{help}");
            assert!(!text.lines().skip(1).any(|line| line.contains('…')), "{text}");
        }
        assert_eq!(fit_name("  0 → a-long-program, process 4000000", 20), "  0 → a-lon… 4000000");
        assert_eq!(fit_words("one two three", 9), "one two…");
    }

    #[test]
    fn the_wide_screen_has_all_columns_and_the_narrow_one_those_that_matter() {
        let lines = |columns| view(Order::Rate).lines(&Some(picture()), Size { columns, rows: 20 }).join("\n");
        let wide = lines(160);
        for part in
            ["1.25 M", "3/32", "32.8 k", "credit", "128", "→ far", "← gone", "trip", "2 of other users", "1 without"]
        {
            assert!(wide.contains(part), "{part}: {wide}");
        }
        let narrow = lines(44);
        assert!(narrow.contains("limited by") && narrow.contains("messages/s") && narrow.contains("→ far"), "{narrow}");
        assert!(!narrow.contains("trip") && !narrow.contains("3/32"), "{narrow}");
    }

    #[test]
    fn remote_memory_has_a_line_of_its_own() {
        let mut picture = picture();
        let told = RemoteMemory { regions: 2, bytes: 3 << 20, pending: 1, ..RemoteMemory::default() };
        let rates = MemoryRates { writes: 1.25e6, bytes_written: 1e7, refused: 2.0, ..MemoryRates::default() };
        picture.processes[1].bundles[0].memory =
            [Some(rates), None].map(|rates| MemoryRow { endpoint: 4, rates, told: told.clone() }).into();
        let text = view(Order::Process).text(&picture);
        let lines: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("fast")).skip(1).take(2).collect();
        let expected = [
            "  4 remote memory: 2 regions, 3.00 MiB, writes 1.25 M/s (10.0 MB), reads 0/s (0 B), atomics 0/s, refused 2/s, 1 operation under way to peers",
            "  4 remote memory: 2 regions, 3.00 MiB, -, 1 operation under way to peers",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn the_largest_by_the_sort_key_comes_first() {
        let first = |order| {
            let text = view(order).text(&picture());
            text.lines().nth(2).expect("a process").split(',').next().expect("its title").to_owned()
        };
        assert_eq!([Order::Limit, Order::Process, Order::Bytes].map(first), ["slow", "slow", "slow"]);
        let mut busy = picture();
        busy.processes[1].bundles[0].rates = Some(Rates { sent: 1.0, ..Rates::default() });
        assert!(view(Order::Rate).text(&busy).lines().nth(2).expect("a process").starts_with("fast"));
    }

    #[test]
    fn scrolling_ends_at_the_last_line_and_keys_do_what_they_say() {
        let size = Size { columns: 80, rows: 5 };
        let mut view = view(Order::Rate);
        (0..100).for_each(|_| view.press(Key::Down, size));
        let lines = view.lines(&Some(picture()), size);
        assert!(lines[4].contains("lines 4 to 5 of 5"), "{lines:?}");
        view.press(Key::PageUp, size);
        assert!(view.lines(&Some(picture()), size)[4].contains("lines 2 to 3"));
        view.press(Key::Letter('p'), size);
        view.press(Key::Letter('s'), size);
        let lines = view.lines(&Some(picture()), size);
        assert!(lines[0].contains("PAUSED") && lines[0].contains("by bytes/s"), "{lines:?}");
        assert_eq!(
            [0.4, 999.0, 1000.0, 12_345.0, 1e6, 2.5e9].map(scaled),
            ["0", "999", "1.00 k", "12.3 k", "1.00 M", "2.50 G"]
        );
    }
}
