//! Events for the program: queueing within a bound, taking, and what happens at the bound.

use super::State;
use crate::endpoint::{Endpoint, Translation};
use crate::event::{Event, CAN_SEND};
use crate::message::SendError;
use weft_wire::path::Tx;

impl<T: Tx> State<T> {
    /// The next event, oldest first. From the first call on the program listens: see [`Event`].
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.listen();
        if self.events.take_lost_can_send() {
            self.tell_lost_can_sends();
        }
        let event = self.events.take_first()?;
        self.forget_waiting(&event);
        if self.events.gets_room() {
            self.on_room_for_events();
        }
        Some(event)
    }

    /// Drops the waiting events, and counts them as [dropped](crate::Counters::events_dropped). This does not make the
    /// program listen.
    pub fn drop_events(&mut self) {
        while let Some(event) = self.events.take_first() {
            self.forget_waiting(&event);
            self.counters.events_dropped += 1;
        }
        if self.events.gets_room() {
            self.on_room_for_events();
        }
    }

    /// Whether so many events wait that sends return *full* until the program has [taken](State::next_event) half of them.
    pub fn has_full_events(&self) -> bool {
        self.events.is_full()
    }

    /// Queues an event for the program or for a client.
    pub(crate) fn tell(&mut self, event: Event) {
        let Some(event) = self.events.push_claimed(event) else {
            self.has_chores = true;
            return;
        };
        self.events.count(&event);
        if let Some((entry, bit)) = self.entry_of(&event) {
            if entry.waiting & bit != 0 {
                return;
            }
            entry.waiting |= bit;
        }
        if self.events.push(event) {
            // Requests of peers that return replies are no longer admitted.
            self.admission += 1;
        }
        while let Some(dropped) = self.events.drop_oldest() {
            self.forget_waiting(&dropped);
            self.counters.events_dropped += 1;
        }
    }

    /// Refuses a send because the program has to take events first. A can-send event follows.
    #[cold]
    #[inline(never)]
    pub(super) fn refuse_for_events(&mut self, from: Endpoint, to: u32) -> Result<(), SendError> {
        let entry = self.endpoint_mut(from)?.translation_mut(to).ok_or(SendError::NotMapped(to))?;
        entry.wants_event = true;
        self.counters.full += 1;
        Err(SendError::Full)
    }

    /// An event no longer waits, so the next one of its kind is queued again.
    fn forget_waiting(&mut self, event: &Event) {
        if let Some((entry, bit)) = self.entry_of(event) {
            entry.waiting &= !bit;
        }
    }

    /// The translation table entry that allows only one waiting event of this kind, and the event's bit there.
    fn entry_of(&mut self, event: &Event) -> Option<(&mut Translation, u8)> {
        let (endpoint, destination, bit) = event.once()?;
        let entry = self.endpoint_mut(endpoint).ok()?.translation_mut(destination)?;
        Some((entry, bit))
    }

    /// The program took half of the events: senders that got *full* because of them may send again.
    #[cold]
    fn on_room_for_events(&mut self) {
        self.admission += 1;
        self.tell_can_send(|entry| std::mem::take(&mut entry.wants_event));
    }

    /// A program begins to listen after can-send events were dropped, so all destinations are reported.
    #[cold]
    fn tell_lost_can_sends(&mut self) {
        self.tell_can_send(|entry| entry.waiting & CAN_SEND == 0);
    }

    fn tell_can_send(&mut self, mut is_told: impl FnMut(&mut Translation) -> bool) {
        let mut told = Vec::new();
        let all: Vec<Endpoint> = self.endpoints.iter().map(|(endpoint, _)| endpoint).collect();
        for endpoint in all {
            let Ok(state) = self.endpoint_mut(endpoint) else { continue };
            for (entry, destination) in state.table.iter_mut().zip(0u32..) {
                if entry.as_mut().is_some_and(&mut is_told) {
                    told.push((endpoint, destination));
                }
            }
        }
        for (endpoint, destination) in told {
            self.tell(Event::CanSend { endpoint, destination });
        }
    }
}
