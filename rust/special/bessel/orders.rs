//! The two orders that von Mises-Fisher distributions of a dimension call for.

use super::Order;
use std::cell::OnceCell;

/// The orders D/2 - 1, of the normaliser, and D/2, of the mean's length.
#[derive(Clone, Copy)]
pub struct Orders<'a> {
    /// The order D/2 - 1.
    pub normaliser: &'a Order,
    /// The order D/2.
    pub ratio: &'a Order,
}

/// Both orders for D dimensions: computed when they are first needed, as they take a microsecond.
pub struct BothOrders {
    dim: f64,
    made: OnceCell<(Order, Order)>,
}

impl BothOrders {
    /// The orders for `dim` dimensions.
    pub fn of(dim: usize) -> Self {
        BothOrders { dim: dim as f64, made: OnceCell::new() }
    }

    /// Both orders.
    pub fn get(&self) -> Orders<'_> {
        let (normaliser, ratio) =
            self.made.get_or_init(|| (Order::new(self.dim / 2.0 - 1.0), Order::new(self.dim / 2.0)));
        Orders { normaliser, ratio }
    }
}
