//! The daemon as a service: what a service manager passes to it and is told, what the host makes hard for it, and what programs and their ends do.

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

/// Not a test: the program that `daemon::attach` starts, and those with other roles.
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
