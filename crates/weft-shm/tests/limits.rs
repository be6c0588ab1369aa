//! Limits of the process give errors, and do not kill it. They apply to the whole process, so this program has only one test.
#![cfg(not(loom))]

use rustix::io::Errno;
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use weft_shm::Shared;

#[test]
fn memory_beyond_the_limit_of_file_size_is_an_error_and_no_signal() {
    let before = getrlimit(Resource::Fsize);
    setrlimit(Resource::Fsize, Rlimit { current: Some(8192), ..before }).expect("less is always allowed");
    let beyond = Shared::create("weft-test", 8193).map(drop);
    let within = Shared::create("weft-test", 8192).map(drop);
    // The harness may print to a file, which has the same limit.
    setrlimit(Resource::Fsize, before).expect("the limit that was there");
    assert_eq!(Errno::from_io_error(&beyond.expect_err("too large")), Some(Errno::FBIG));
    within.expect("as large as may be");
}
