//! Grants what it never offers.

use dracpu_test_guests::Vices;

dracpu_test_guests::guest!("offers-nothing", vices: Vices {
    offer: |offers| {
        for offer in offers {
            offer.capacity = 0;
        }
    },
    ..Vices::NONE
});
