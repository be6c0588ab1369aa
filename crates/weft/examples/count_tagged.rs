//! Makes a number of tagged ping-pongs between two bundles of one thread, and does nothing else. Instructions are counted by
//! running it twice under callgrind with different numbers, as `docs/instructions.txt` says of `count_messages`. With a second
//! argument the sides send (`send`) from lent buffers instead of injecting.

use weft::tagged::{Label, Lent, LentMut, Outcome, Pattern, Settings};
use weft::{Bundle, Endpoint, Key, Node};

const KEY: Key = Key(1);

struct Side {
    bundle: Bundle,
    here: Endpoint,
    sends: bool,
    contents: Box<[u8; 16]>,
    room: Box<[u8; 16]>,
}

impl Side {
    fn new(node: &Node, sends: bool) -> Result<Side, Box<dyn std::error::Error>> {
        let mut bundle = Bundle::new(node)?;
        let here = bundle.tagged_endpoint(KEY, Settings::default())?;
        Ok(Side { bundle, here, sends, contents: Box::new([7; 16]), room: Box::new([0; 16]) })
    }

    fn send(&mut self) {
        let mut tagged = self.bundle.tagged(self.here).expect("there");
        if self.sends {
            // SAFETY: the contents live as long as the bundle and are not changed.
            let contents = unsafe { Lent::new(self.contents.as_ptr(), self.contents.len()) };
            tagged.try_send(0, Label::tagged(7), contents, 2).expect("posted");
        } else {
            tagged.try_inject(0, Label::tagged(7), &self.contents[..]).expect("posted");
        }
    }

    fn receive(&mut self) {
        // SAFETY: the room lives as long as the bundle and is not read.
        let room = unsafe { LentMut::new(self.room.as_mut_ptr(), self.room.len()) };
        let mut tagged = self.bundle.tagged(self.here).expect("there");
        tagged.try_receive(Pattern::tagged(7).from(0), room, 1).expect("posted");
    }

    /// Whether the posted receive is complete.
    fn look(&mut self) -> bool {
        self.bundle.poll();
        let mut has_received = false;
        while let Some(completion) = self.bundle.next_completion() {
            if let Outcome::Received(received) = completion.outcome {
                assert_eq!((received.stored, completion.context), (16, 1));
                has_received = true;
            }
        }
        has_received
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let count: u64 = words.next().ok_or("give the number of ping-pongs")?.parse()?;
    let sends = words.next().is_some_and(|word| word == "send");
    let node = Node::new()?;
    let (mut ping, mut pong) = (Side::new(&node, sends)?, Side::new(&node, sends)?);
    let names = [ping.bundle.name(ping.here)?, pong.bundle.name(pong.here)?];
    ping.bundle.tagged(ping.here)?.map(0, names[1], KEY)?;
    pong.bundle.tagged(pong.here)?.map(0, names[0], KEY)?;
    for (one, other) in [(&mut ping, &mut pong)] {
        one.receive();
        other.receive();
        one.send();
        other.send();
        let (mut here, mut there) = (false, false);
        while !(here && there) {
            here |= one.look();
            there |= other.look();
            // The helper sets up the session. The number of polls until then varies, and must not be counted.
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
    for _ in 0..count {
        pong.receive();
        ping.receive();
        ping.send();
        assert!(pong.look());
        pong.send();
        assert!(ping.look());
    }
    Ok(())
}
