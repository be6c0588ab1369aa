//! The check of received messages: each number once, in order, with the contents that belong to it.

/// Bytes after the two arguments of a request and of its answer: 16 in all.
const PAYLOAD: usize = 8;

/// What one end of a line has received: a client's requests, or the answers to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Order {
    client: u32,
    /// The number that must come next.
    next: u32,
    /// Messages received.
    pub came: u64,
    /// Those that were out of order or had wrong contents.
    pub strange: u64,
}

impl Order {
    /// For this client, from the first number on.
    pub fn new(client: u32) -> Order {
        Order { client, ..Order::default() }
    }

    /// Notes a message.
    pub fn note(&mut self, args: &[u32], payload: &[u8]) {
        self.came = self.came.saturating_add(1);
        match *args {
            [client, number] if (client, number) == (self.client, self.next) && payload == contents(client, number) => {
                self.next = number.wrapping_add(1);
            }
            // Later messages are compared with this one, so that each fault counts once.
            [_, number] => {
                self.strange = self.strange.saturating_add(1);
                self.next = number.wrapping_add(1);
            }
            _ => self.strange = self.strange.saturating_add(1),
        }
    }
}

/// The payload of a client's request, and of the answer to it.
pub fn contents(client: u32, number: u32) -> [u8; PAYLOAD] {
    (u64::from(number) << 32 | u64::from(client)).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of these numbers of client 3 were received, and how many were strange.
    fn seen(numbers: &[u32]) -> (u64, u64) {
        let mut order = Order::new(3);
        numbers.iter().for_each(|number| order.note(&[3, *number], &contents(3, *number)));
        (order.came, order.strange)
    }

    #[test]
    fn numbers_that_come_one_after_the_other_are_in_order() {
        assert_eq!(seen(&[0, 1, 2, 3]), (4, 0));
    }

    #[test]
    fn lost_duplicated_and_overtaken_messages_are_found() {
        assert_eq!(seen(&[0, 1, 3, 4]), (4, 1));
        assert_eq!(seen(&[0, 1, 1, 2]), (4, 1));
        assert_eq!(seen(&[0, 2, 1, 3]), (4, 3));
        assert_eq!(seen(&[1, 2]), (2, 1));
    }

    #[test]
    fn contents_of_another_message_are_found() {
        let mut order = Order::new(3);
        order.note(&[3, 0], &contents(3, 1));
        order.note(&[2, 1], &contents(2, 1));
        order.note(&[3], &contents(3, 2));
        order.note(&[3, 2], &contents(3, 2)[..7]);
        order.note(&[3, 3], &contents(3, 3));
        assert_eq!((order.came, order.strange), (5, 4));
    }
}
