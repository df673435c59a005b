mod claims;
mod containers;
mod crashes;
mod metadata;
mod records;
mod support;
