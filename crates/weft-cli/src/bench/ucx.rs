//! UCX beside weft: `ucx_perftest` between the same two CPUs, over its shared-memory transport, or over TCP between hosts.
//!
//! ucx_perftest reports half of a round trip, and for rates only the mean of a run. Its receivers do not read the bytes; those of
//! `ucx-read`, our program in `bench/limits`, do.

use super::hosts::{Place, Side};
use super::machine::Cpus;
use super::meter::Sampled;
use super::results::Metric;
use crate::child::{output_of, NoOutput, Owned};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

/// How long one run may take.
const RUN_MOST: Duration = Duration::from_secs(10);

/// How often the client is started until the server listens.
const ATTEMPTS: u32 = 20;

/// Time between two of these starts.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(15);

/// The largest message that UCT sends at once over posix shared memory, and the largest that it sends as *short*.
const UCT_MOST: usize = 8192;
const UCT_SHORT_MOST: usize = 92;

/// The interfaces of UCX that are measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Api {
    /// Active messages of the transport layer, over posix shared memory.
    UctAm,
    /// Active messages of the protocol layer.
    UcpAm,
    /// Tagged messages of the protocol layer (one way only).
    UcpTag,
    /// Active messages of the protocol layer, over TCP.
    Tcp,
    /// Remote memory of the protocol layer: writes.
    UcpPut,
    /// The same: reads.
    UcpGet,
    /// The same: additions. They return the old values if a round trip is measured.
    UcpAdd,
}

impl Api {
    /// The name in rows.
    pub fn system(self) -> &'static str {
        match self {
            Api::UctAm => "ucx-uct-am",
            Api::UcpAm => "ucx-ucp-am",
            Api::UcpTag => "ucx-ucp-tag",
            Api::Tcp => "ucx-tcp",
            Api::UcpPut => "ucx-ucp-put",
            Api::UcpGet => "ucx-ucp-get",
            Api::UcpAdd => "ucx-ucp-add",
        }
    }

    /// The name in `ucx-read`, if that measures it.
    pub fn how(self) -> Option<&'static str> {
        match self {
            Api::UctAm => Some("uct"),
            Api::UcpAm => Some("ucp"),
            Api::UcpTag | Api::Tcp | Api::UcpPut | Api::UcpGet | Api::UcpAdd => None,
        }
    }

    /// Nanoseconds of a round trip per microsecond reported: for messages it reports half of a round trip.
    fn trip_ns(self) -> f64 {
        match self {
            Api::UcpGet | Api::UcpAdd => 1e3,
            _ => 2e3,
        }
    }

    /// Whether it can send messages of that size.
    pub fn takes(self, size: usize) -> bool {
        self != Api::UctAm || size <= UCT_MOST
    }
}

/// What to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Question {
    pub api: Api,
    pub metric: Metric,
    pub size: usize,
}

/// The installed program.
#[derive(Clone, Debug)]
pub struct Ucx {
    cpus: Cpus,
    place: Rc<Place>,
}

/// The columns of its last line, in its own units.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Final {
    iterations: f64,
    percentile_us: f64,
    overall_us: f64,
    messages_per_second: f64,
}

impl Ucx {
    /// Finds the program. The error says how to install it.
    pub fn find(cpus: Cpus) -> Result<Ucx, String> {
        Ucx::find_between(cpus, &Rc::new(Place::Here))
    }

    /// The same, for two places.
    pub fn find_between(cpus: Cpus, place: &Rc<Place>) -> Result<Ucx, String> {
        let found = output_of(Command::new("ucx_perftest").arg("-h"), RUN_MOST);
        let with_taskset = output_of(Command::new("taskset").arg("--version"), RUN_MOST);
        match (found, with_taskset) {
            (Ok(_), Ok(_)) => loopback()
                .map(|()| Ucx { cpus, place: place.clone() })
                .map_err(|e| format!("it needs TCP on loopback: {e}; type `ip link set lo up`")),
            (Err(NoOutput::NotStarted(_)), _) => {
                Err("ucx_perftest is not installed; to have it type `make bench`, or apt-get install ucx-utils"
                    .to_owned())
            }
            _ => Err("ucx_perftest or taskset does not run here".to_owned()),
        }
    }

    /// Runs it once for about `time`, given the duration of a message in the last run.
    ///
    /// Returns the figures, and the duration of a message in ns for the next run. The tail takes a second, shorter run; without it
    /// the tail is NaN.
    pub fn run(
        &self,
        question: Question,
        time: Duration,
        last_ns: Option<f64>,
        with_tail: bool,
    ) -> Result<(Sampled, f64), String> {
        let ns = last_ns.unwrap_or_else(|| guess_ns(question));
        let iterations = (time.as_nanos() as f64 / ns).clamp(200.0, 2e7) as u64;
        let middle = self.ask(question, iterations, 50)?;
        let sampled = match question.metric {
            Metric::Rtt => {
                let tail = if with_tail { Some(self.ask(question, iterations / 4, 99)?) } else { None };
                let ns = question.api.trip_ns();
                Sampled {
                    median: ns * middle.percentile_us,
                    p99: tail.map_or(f64::NAN, |tail| ns * tail.percentile_us),
                    mean: ns * middle.overall_us,
                    n: middle.iterations as usize,
                }
            }
            metric => {
                let units = if metric == Metric::Bandwidth { question.size as f64 } else { 1.0 };
                let mean = middle.messages_per_second * units;
                Sampled { median: mean, p99: mean, mean, n: 1 }
            }
        };
        Ok((sampled, (1e3 * middle.overall_us).max(1.0)))
    }

    fn ask(&self, question: Question, iterations: u64, percentile: u32) -> Result<Final, String> {
        let port = free_port()?.to_string();
        let mut server = self.command(question.api, Side::There);
        server.args(["-p", &port]).stdout(Stdio::null()).stderr(Stdio::null());
        let server = server.spawn();
        let mut server = Owned(server.map_err(|e| format!("it cannot be run: {e}"))?);
        let mut last = String::new();
        for _ in 0..ATTEMPTS {
            std::thread::sleep(BETWEEN_ATTEMPTS);
            let mut client = self.command(question.api, Side::Here);
            client.args([&self.place.there().to_string(), "-p", &port, "-f", "-R", &percentile.to_string()]);
            client.args(arguments(question)).args([
                "-n",
                &iterations.to_string(),
                "-w",
                &(iterations / 20 + 10).to_string(),
            ]);
            let output = match output_of(&mut client, RUN_MOST) {
                Ok(output) => output,
                Err(NoOutput::NotStarted(e)) => return Err(format!("it cannot be run: {e}")),
                Err(NoOutput::TooLong) => return Err(format!("no end after {} s", RUN_MOST.as_secs())),
            };
            if let Some(found) = String::from_utf8_lossy(&output.stdout).lines().rev().find_map(Final::read) {
                let_end(&mut server);
                return Ok(found);
            }
            // It logs errors to standard output.
            let said = [output.stderr, output.stdout].concat();
            last = String::from_utf8_lossy(&said).trim().to_owned();
            if !last.contains("connect") {
                break;
            }
        }
        Err(last.lines().last().unwrap_or("it printed no result").to_owned())
    }

    fn command(&self, api: Api, side: Side) -> Command {
        let cpu = if side == Side::Here { self.cpus.ours } else { self.cpus.theirs };
        let mut command = self.place.command(side, "taskset");
        command.args(["-c", &cpu.to_string(), "ucx_perftest"]).stdin(Stdio::null());
        command.env("UCX_LOG_LEVEL", "error");
        match api {
            Api::Tcp => command.env("UCX_TLS", "tcp").env("UCX_NET_DEVICES", self.place.interface()),
            _ => command.env("UCX_TLS", "posix,self,cma"),
        };
        command
    }
}

impl Final {
    /// Reads a line of numbers: iterations, percentile, average and overall time, bandwidths, message rates.
    fn read(line: &str) -> Option<Final> {
        let columns: Vec<f64> = line.trim_start_matches("Final:").split_whitespace().flat_map(str::parse).collect();
        let [iterations, percentile_us, _, overall_us, _, _, _, messages_per_second] = columns[..] else {
            return None;
        };
        Some(Final { iterations, percentile_us, overall_us, messages_per_second })
    }
}

fn arguments(question: Question) -> Vec<String> {
    let is_rtt = question.metric == Metric::Rtt;
    let layout = if question.size <= UCT_SHORT_MOST { "short" } else { "bcopy" };
    let words: Vec<&str> = match (question.api, is_rtt) {
        (Api::UctAm, true) => vec!["-t", "am_lat", "-x", "posix", "-d", "memory", "-D", layout],
        (Api::UctAm, false) => vec!["-t", "am_bw", "-x", "posix", "-d", "memory", "-D", layout],
        (Api::UcpAm | Api::Tcp, true) => vec!["-t", "ucp_am_lat"],
        (Api::UcpAm | Api::Tcp, false) => vec!["-t", "ucp_am_bw"],
        (Api::UcpTag, true) => vec!["-t", "tag_lat"],
        (Api::UcpTag, false) => vec!["-t", "tag_bw"],
        (Api::UcpPut, true) => vec!["-t", "ucp_put_lat"],
        (Api::UcpPut, false) => vec!["-t", "ucp_put_bw"],
        (Api::UcpGet, true) => vec!["-t", "ucp_get", "-O", "1"],
        (Api::UcpGet, false) => vec!["-t", "ucp_get"],
        (Api::UcpAdd, true) => vec!["-t", "ucp_fadd", "-O", "1"],
        (Api::UcpAdd, false) => vec!["-t", "ucp_add"],
    };
    let words = words.into_iter().map(str::to_owned);
    words.chain(["-s".to_owned(), question.size.to_string()]).collect()
}

/// An estimate for the first run: half a round trip, or the interval between two messages.
fn guess_ns(question: Question) -> f64 {
    if question.api == Api::Tcp {
        return 10e3 + question.size as f64 / 2.0;
    }
    let start = if question.metric == Metric::Rtt { 400.0 } else { 150.0 };
    start + question.size as f64 / 4.0
}

/// Gives the server time to remove its file in /dev/shm before it is killed.
fn let_end(server: &mut Owned) {
    for _ in 0..200 {
        match server.0.try_wait() {
            Ok(None) => std::thread::sleep(Duration::from_millis(2)),
            _ => return,
        }
    }
}

/// Whether TCP on loopback works. UCX's two processes connect through it.
fn loopback() -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    TcpStream::connect(listener.local_addr()?).map(|_| ())
}

/// A port that is free at this moment.
fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind("127.0.0.1:0");
    let port = listener.and_then(|l| l.local_addr()).map(|address| address.port());
    port.map_err(|e| format!("no free port: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_last_line_is_read_with_and_without_its_title() {
        let numbers = "      500000      0.401     1.738     1.966        8.78       7.76      575405      508696";
        let read = Final::read(numbers).expect("eight columns");
        assert_eq!(
            read,
            Final { iterations: 500_000.0, percentile_us: 0.401, overall_us: 1.966, messages_per_second: 508_696.0 }
        );
        assert_eq!(Final::read(&format!("Final: {numbers}")), Some(read));
        assert_eq!(Final::read("+-----+"), None);
        assert_eq!(Final::read("[thread 0]  222091  0.451 2.251"), None);
    }
}
