//! Offers a CPU more than a group has.

use dracpu_test_guests::Vices;

dracpu_test_guests::guest!("offers-too-much", vices: Vices {
    offer: |offers| {
        for offer in offers {
            offer.capacity += 1;
        }
    },
    ..Vices::NONE
});
