/// x
pub struct Drawing;
/// y
pub enum Mark {}
