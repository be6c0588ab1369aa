//! When a datagram came to this host, which may be long before a process received it. Once a process has asked for such times, the kernel
//! notes them as datagrams come from the interface.
//!
//! The time is read by a call of its own (`SIOCGSTAMPNS`), so it costs nothing where nobody asks. Callers that receive control data anyway
//! find the time there, and use [`age_at`].

use rustix::fd::BorrowedFd;
use rustix::ioctl::{self, Getter};
use rustix::time::{clock_gettime, ClockId};
use std::time::Duration;

/// `_IOR(0x89, 7, long long[2])`: when the last datagram came, as `struct __kernel_timespec`.
const WHEN: ioctl::Opcode = ioctl::opcode::read::<[i64; 2]>(0x89, 7);

/// How long ago the datagram that was last received through this socket came to this host. `None` if the kernel does not say, or if that
/// time is in the future because the clock was set. Does not block.
///
/// The first call has the kernel note times; a datagram that came before that seems to have come just now.
pub fn age_of_last(socket: BorrowedFd<'_>) -> Option<Duration> {
    // SAFETY: `struct __kernel_timespec` is two words of 64 bits on every architecture, and the request has their size in it.
    let request = unsafe { Getter::<WHEN, [i64; 2]>::new() };
    // SAFETY: the kernel writes those two words and nothing else. A descriptor of another kind refuses the request.
    let [seconds, nanos] = unsafe { ioctl::ioctl(socket, request) }.ok()?;
    age_at(Duration::new(seconds.try_into().ok()?, nanos.try_into().ok()?))
}

/// How long ago a datagram came, by the time that the kernel gave for it (`SO_TIMESTAMPNS`). `None` if that time is in the future because
/// the clock was set.
pub fn age_at(at: Duration) -> Option<Duration> {
    let now = clock_gettime(ClockId::Realtime);
    Duration::new(now.tv_sec.try_into().ok()?, now.tv_nsec.try_into().ok()?).checked_sub(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::time::Instant;

    #[test]
    fn a_datagram_that_waited_is_older_than_one_that_came_just_now() {
        let here = UdpSocket::bind("127.0.0.1:0").unwrap();
        let there = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut buffer = [0; 8];
        // The kernel begins to note times a little after it is first asked.
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let sent = Instant::now();
            there.send_to(b"early", here.local_addr().unwrap()).unwrap();
            std::thread::sleep(Duration::from_millis(2));
            here.recv(&mut buffer).unwrap();
            let age = age_of_last(here.as_fd()).expect("Linux 5.1 tells");
            assert!(age <= sent.elapsed());
            if age >= Duration::from_millis(2) {
                break;
            }
            assert!(Instant::now() < end, "never told to be older than {age:?}");
        }
        let sent = Instant::now();
        there.send_to(b"now", here.local_addr().unwrap()).unwrap();
        here.recv(&mut buffer).unwrap();
        let age = age_of_last(here.as_fd()).unwrap();
        assert!(age <= sent.elapsed(), "{age:?}");
    }

    #[test]
    fn a_file_that_is_no_socket_has_no_age() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(age_of_last(file.as_fd()), None);
    }
}
