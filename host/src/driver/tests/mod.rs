mod claims;
mod containers;
mod crashes;
mod records;
mod support;
