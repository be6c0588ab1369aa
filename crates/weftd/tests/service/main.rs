//! The daemon as a service: the service manager, a host that lacks resources, and programs and their ends.

mod daemon;
mod deaths;
mod hostile;
mod integrity;
mod kept;
mod manual;
mod memory;
mod players;
mod refusals;
mod rights;
mod strangers;
mod systemd;
mod views;
mod walks;

/// Not a test: the program that `daemon::attach` starts, and programs with other roles.
#[test]
fn program() {
    match std::env::var(daemon::ROLE).as_deref() {
        Err(_) => return,
        Ok("program") => {}
        Ok(role) => return players::play(role),
    }
    let node = weft::Node::new().expect("a node");
    let mut bundle = weft::Bundle::new(&node).expect("a bundle");
    bundle.endpoint(weft::Key(1)).expect("an endpoint of the daemon's");
}
