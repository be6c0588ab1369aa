//! Limits of the process: they are errors, and do not end it. The limits are the whole process's, so this program has one test.
#![cfg(not(loom))]

use rustix::io::Errno;
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use weft_shm::Shared;

#[test]
fn memory_beyond_the_limit_of_file_size_is_an_error_and_no_signal() {
    let before = getrlimit(Resource::Fsize);
    setrlimit(Resource::Fsize, Rlimit { current: Some(8192), ..before }).expect("less is always allowed");
    let error = Shared::create("weft-test", 8193).expect_err("too large");
    assert_eq!(Errno::from_io_error(&error), Some(Errno::FBIG));
    Shared::create("weft-test", 8192).expect("as large as may be");
}
