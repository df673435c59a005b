mod cancelled;
mod claims;
mod containers;
mod crashes;
mod faults;
#[cfg(debug_assertions)]
mod locks;
mod records;
mod support;
