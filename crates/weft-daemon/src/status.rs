//! Surveys of an engine, step by step, so that a survey of 100,000 endpoints does not hold up messages for long.

use crate::engine::{Counters, Engine};
use crate::frames::Policy;
use crate::lines::{Line, LineRef, Marks, Peer};
use crate::quota::QUOTAS;
use crate::residency::Residence;
use crate::rows::{Row, RowId};
use weft_core::ni::Link;
use weft_wire::segment::{Cursor, Segment, ASLEEP};
use weft_wire::status::{
    AttachmentStatus, DaemonCounters, DaemonStatus, EndStatus, EndpointStatus, HostStatus, Item, LineLimit, LineStatus,
    NetworkStatus, QuotaStatus, ResidenceStatus, Scope, UserStatus, STATUS_VERSION,
};
use weft_wire::{HostAddress, Name, Uid};

/// Table entries that a step looks at, at most.
const PLACES: usize = 1024;

/// Items that a step reports, at most.
const ITEMS: usize = 64;

/// Users that a step reports: each one's share costs a look at all the others.
const USERS: usize = 8;

/// A survey of an engine, which goes on with each step.
#[derive(Clone, Copy, Debug)]
pub struct Survey {
    scope: Scope,
    /// A user who sees only its own things. `None`: a viewer who sees everything.
    viewer: Option<Uid>,
    stage: Stage,
    seen: EndStatus,
}

/// The next stage, and where it begins.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Daemon,
    Users(Option<Uid>),
    Hosts(usize),
    Attachments(usize),
    Endpoints(usize),
    Lines { attachment: usize, line: usize },
    End,
    Over,
}

impl Survey {
    /// A survey for a user, or for a viewer who may see everything.
    pub fn new(scope: Scope, viewer: Option<Uid>) -> Survey {
        Survey { scope, viewer, stage: Stage::Daemon, seen: EndStatus::default() }
    }

    /// Whether everything was reported.
    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    fn may_see(&self, user: Uid) -> bool {
        self.viewer.is_none_or(|viewer| viewer == user)
    }
}

impl<S: Segment, L: Link> Engine<S, L> {
    /// Continues a survey: looks at some entries, and adds what there is to report of them. Leaves the process's number at zero and its
    /// version empty, for the process around the engine to fill in.
    pub fn survey(&mut self, survey: &mut Survey, items: &mut Vec<Item>) {
        survey.stage = match survey.stage {
            Stage::Daemon => {
                items.push(Item::Daemon(self.describe(survey.viewer.is_none())));
                Stage::Users(None)
            }
            Stage::Users(after) => self.survey_users(survey, after, items),
            Stage::Hosts(from) => self.survey_hosts(survey, from, items),
            Stage::Attachments(from) => self.survey_attachments(survey, from, items),
            Stage::Endpoints(from) => self.survey_endpoints(survey, from, items),
            Stage::Lines { attachment, line } => self.survey_lines(survey, (attachment, line), items),
            Stage::End => {
                items.push(Item::End(survey.seen));
                Stage::Over
            }
            Stage::Over => Stage::Over,
        };
    }

    fn describe(&mut self, tells_all: bool) -> DaemonStatus {
        let hosts = self.far.as_ref().map_or(0, |far| far.ni.hosts().count());
        let network = self.far.as_ref().map(|far| NetworkStatus {
            hosts: hosts as u64,
            packets_damaged: far.ni.damaged(),
            packets_refused: far.ni.refused(),
        });
        let limits = QUOTAS.map(|(quota, of)| {
            let (held, most) = self.accounts.total(quota);
            QuotaStatus { of: of.into(), held, most }
        });
        DaemonStatus {
            version: STATUS_VERSION,
            tells_all,
            address: printed(self.settings.address),
            frames: self.settings.frames.max(1).into(),
            frames_used: self.resident() as u64,
            policy: name_of(self.settings.policy).into(),
            attachments: self.attachments() as u64,
            endpoints: self.endpoints() as u64,
            limits: limits.into(),
            counters: DaemonCounters::from(self.counters()),
            network,
            ..DaemonStatus::default()
        }
    }

    fn survey_users(&self, survey: &Survey, after: Option<Uid>, items: &mut Vec<Item>) -> Stage {
        let mut last = after;
        for _ in 0..USERS {
            let next = match survey.viewer {
                Some(viewer) => Some(viewer).filter(|_| last.is_none()),
                None => self.accounts.next_user(last),
            };
            let Some(user) = next else { return Stage::Hosts(0) };
            let quotas = QUOTAS.map(|(quota, of)| QuotaStatus {
                of: of.into(),
                held: self.accounts.held(user, quota),
                most: self.accounts.share(user, quota),
            });
            items.push(Item::User(UserStatus { uid: user.0, quotas: quotas.into() }));
            last = Some(user);
        }
        Stage::Users(last)
    }

    fn survey_hosts(&mut self, survey: &Survey, from: usize, items: &mut Vec<Item>) -> Stage {
        let Some(far) = self.far.as_mut().filter(|_| survey.viewer.is_none()) else { return Stage::Attachments(0) };
        let some: Vec<_> = far.ni.hosts().skip(from).take(ITEMS).map(|(id, _)| id).collect();
        items.extend(some.iter().filter_map(|id| far.ni.report(*id)).map(|told| {
            let micros = |time: std::time::Duration| time.as_nanos() as f64 / 1e3;
            Item::Host(HostStatus {
                address: format!("{:?}", told.address),
                round_trip_us: told.round_trip.map(micros),
                integrity: told.integrity,
                integrity_wanted: told.integrity_wanted,
                in_flight_bytes: told.in_flight,
                window_bytes: told.window,
                waits_for_peer: told.waits_for_peer,
                silences: told.silences,
                packets_sent: told.counters.packets_sent,
                packets_received: told.counters.packets_received,
                packets_lost: told.counters.packets_lost,
            })
        }));
        match some.len() < ITEMS {
            true => Stage::Attachments(0),
            false => Stage::Hosts(from + ITEMS),
        }
    }

    fn survey_attachments(&self, survey: &Survey, from: usize, items: &mut Vec<Item>) -> Stage {
        let end = self.attachments.capacity();
        let mut told = 0;
        for at in from..end.min(from + PLACES) {
            let Some(found) = self.attachments.get(at).filter(|found| survey.may_see(found.user)) else { continue };
            if told == ITEMS {
                return Stage::Attachments(at);
            }
            told += 1;
            items.push(Item::Attachment(AttachmentStatus {
                attachment: at as u32,
                uid: found.user.0,
                pid: None,
                epoch: format!("{:016x}", found.epoch.0),
                // The first one of each is the system endpoint and its line.
                endpoints: found.rows.len().saturating_sub(1) as u64,
                lines: found.lines.len().saturating_sub(1) as u64,
                sleeps: found.segment.cursor(ASLEEP) != 0,
            }));
        }
        match (from + PLACES < end, survey.scope) {
            (true, _) => Stage::Attachments(from + PLACES),
            (false, Scope::Totals) => Stage::End,
            (false, _) => Stage::Endpoints(0),
        }
    }

    fn survey_endpoints(&self, survey: &mut Survey, from: usize, items: &mut Vec<Item>) -> Stage {
        if let Scope::Endpoint(epoch, endpoint) = survey.scope {
            let found = self.names.get(&(epoch, endpoint)).and_then(|id| Some((*id, self.rows.get(*id)?)));
            if let Some((id, row)) = found {
                self.tell_endpoint(survey, id, row, items);
            }
            return Stage::Lines { attachment: 0, line: 0 };
        }
        let end = self.rows.places();
        let mut told = 0;
        for at in from..end.min(from + PLACES) {
            let Some((id, row)) = self.rows.at(at) else { continue };
            if told == ITEMS {
                return Stage::Endpoints(at);
            }
            told += usize::from(self.tell_endpoint(survey, id, row, items));
        }
        match from + PLACES < end {
            true => Stage::Endpoints(from + PLACES),
            false => Stage::Lines { attachment: 0, line: 0 },
        }
    }

    /// Counts an endpoint, and reports it if asked for. Returns whether it did.
    fn tell_endpoint(&self, survey: &mut Survey, id: RowId, row: &Row, items: &mut Vec<Item>) -> bool {
        let Some(name) = self.name_of(id).filter(|name| row.part_number != 0 && survey.may_see(name.uid)) else {
            return false;
        };
        let (residence, frame) = match row.residence {
            Residence::Resident { frame, .. } => (ResidenceStatus::Resident, Some(frame)),
            Residence::Waiting(_) => (ResidenceStatus::Waiting, None),
            Residence::Idle => (ResidenceStatus::Idle, None),
        };
        match residence {
            ResidenceStatus::Resident => survey.seen.resident += 1,
            ResidenceStatus::Waiting => survey.seen.waiting += 1,
            ResidenceStatus::Idle => survey.seen.idle += 1,
        }
        let has_stalled = row.has_stalled || self.has_paused(id);
        let is_active = residence != ResidenceStatus::Idle || has_stalled;
        if survey.scope == Scope::Active && !is_active {
            return false;
        }
        items.push(Item::Endpoint(EndpointStatus {
            name: name.to_string(),
            attachment: row.attachment,
            uid: name.uid.0,
            pid: None,
            residence,
            frame,
            weight: row.weight,
            lines: row.lines,
            sent: row.sent,
            received: row.received,
            not_taken: self.not_taken(row),
            refused: row.refused,
            has_stalled,
        }));
        true
    }

    /// Descriptors that an endpoint's program has not taken, by its own account: only for reports, so it need not be true.
    fn not_taken(&self, row: &Row) -> u64 {
        let known = row.received - row.received_known;
        // No page is touched for an endpoint that is not known to be behind.
        let Some(found) = self.attachments.get(row.attachment as usize).filter(|_| known > 0) else { return known };
        let taken = found.segment.cursor(row.part.here(Cursor::Taken));
        row.received - taken.clamp(row.received_known, row.received)
    }

    fn survey_lines(&mut self, survey: &mut Survey, from: (usize, usize), items: &mut Vec<Item>) -> Stage {
        let (mut attachment, mut line) = from;
        let mut told = 0;
        for _ in 0..PLACES {
            let Some(found) = self.attachments.get(attachment).filter(|found| line < found.lines.end() as usize) else {
                if attachment >= self.attachments.capacity() {
                    return Stage::End;
                }
                (attachment, line) = (attachment + 1, 0);
                continue;
            };
            if let Some(entry) = found.lines.get(line as u32).filter(|_| line != 0 && survey.may_see(found.user)) {
                if told == ITEMS {
                    break;
                }
                let at = LineRef { attachment: attachment as u32, line: line as u32 };
                if let Some(status) = self.describe_line(survey, at, entry) {
                    told += 1;
                    items.push(Item::Line(status));
                }
            }
            line += 1;
        }
        Stage::Lines { attachment, line }
    }

    /// Counts a line, and describes it if asked for.
    fn describe_line(&self, survey: &mut Survey, at: LineRef, entry: &Line) -> Option<LineStatus> {
        let limit = match (entry.marks.has(Marks::WAITS), entry.marks.has(Marks::IS_FULL)) {
            (true, _) => LineLimit::Peer,
            (false, true) => LineLimit::Network,
            (false, false) => LineLimit::Nothing,
        };
        survey.seen.lines += 1;
        survey.seen.stalled += u64::from(limit == LineLimit::Peer);
        let (peer, host) = match entry.peer {
            Peer::Unopened(row) => (Some(row), None),
            Peer::Line(peer) => (self.line(peer).map(|peer| peer.row), None),
            Peer::Stream(host, _) => (None, Some(host)),
            Peer::None => (None, None),
        };
        let is_wanted = match survey.scope {
            Scope::Totals => false,
            Scope::Active => limit != LineLimit::Nothing,
            Scope::All => true,
            Scope::Endpoint(epoch, endpoint) => {
                let row = self.names.get(&(epoch, endpoint)).copied();
                row.is_some() && (row == Some(entry.row) || row == peer)
            }
        };
        if !is_wanted {
            return None;
        }
        let host = host.and_then(|id| self.far.as_ref()?.ni.key(id)).map(|key| format!("{:?}", key.address));
        Some(LineStatus {
            endpoint: self.name_of(entry.row)?.to_string(),
            attachment: at.attachment,
            line: at.line,
            peer: peer.and_then(|row| self.name_of(row)).map(|name| name.to_string()),
            host,
            under_way_bytes: entry.delivered.since(entry.taken).into(),
            limit,
        })
    }

    fn name_of(&self, id: RowId) -> Option<Name> {
        let row = self.rows.get(id)?;
        let found = self.attachments.get(row.attachment as usize)?;
        let address = self.settings.address;
        Some(Name { epoch: found.epoch, endpoint: row.endpoint, uid: found.user, address })
    }

    fn line(&self, at: LineRef) -> Option<&Line> {
        self.attachments.get(at.attachment as usize)?.lines.get(at.line)
    }
}

fn name_of(policy: Policy) -> &'static str {
    match policy {
        Policy::Random => "random",
        Policy::Clock => "clock",
        Policy::Lru => "lru",
    }
}

/// An address as text, if it is one.
fn printed(address: HostAddress) -> Option<String> {
    (!address.is_none()).then(|| format!("{address:?}"))
}

#[doc(hidden)]
impl From<&Counters> for DaemonCounters {
    fn from(counted: &Counters) -> DaemonCounters {
        DaemonCounters {
            delivered: counted.delivered,
            sent: counted.sent,
            copied_bytes: counted.copied,
            refused: counted.refused,
            paused: counted.paused,
            remapped: counted.bound,
            evicted: counted.evicted,
            requests: counted.requests,
            false_bells: counted.false_bells,
            violations: counted.violations,
        }
    }
}
