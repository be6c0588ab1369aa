//! Flow control without I/O, clock or randomness of its own: the window of outstanding requests and the credit of one-way
//! messages. Channels, acknowledgements and congestion control join them with the host-to-host transport.
#![forbid(unsafe_code)]

pub mod credit;
pub mod window;

pub use credit::{CreditAccount, CreditDue, Grant};
pub use window::Window;
