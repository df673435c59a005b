mod cancelled;
mod claims;
mod containers;
mod crashes;
mod faults;
mod locks;
mod records;
mod support;
