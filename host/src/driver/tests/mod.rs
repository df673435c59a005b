mod cancelled;
mod claim_status;
mod claims;
mod containers;
mod crashes;
mod faults;
#[cfg(debug_assertions)]
mod locks;
mod metadata;
mod notices;
mod overlap;
mod records;
mod support;
