mod cancelled;
mod claim_status;
mod claims;
mod containers;
mod crashes;
mod decisions;
mod faults;
mod inventory;
#[cfg(debug_assertions)]
mod locks;
mod mend;
mod metadata;
mod notices;
mod overlap;
mod records;
mod support;
