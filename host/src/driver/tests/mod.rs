mod claim_status;
mod claims;
mod containers;
mod crashes;
mod metadata;
mod records;
mod support;
