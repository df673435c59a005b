mod calls;
mod driver;
mod peer;
mod sessions;
