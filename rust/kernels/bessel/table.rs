//! Bessel functions of one order in float32, by tables of quadratics on pieces of x.

use super::{by_formula, ByFormula, Quantity, Tabulated};
use crate::simd::{Kernel, Simd, PIECES, PIECES_FROM, PIECES_TO, V};
use crate::special::bessel::Order;
use std::any::TypeId;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

/// Computes elements of one order by its table; those that the table does not cover, by the formula.
pub struct ByTable<'a, Q> {
    pub table: &'a Table,
    pub order: &'a Order,
    pub x: &'a [f32],
    pub out: &'a mut [f32],
    pub quantity: PhantomData<Q>,
}

impl<Q: Quantity> Kernel for ByTable<'_, Q> {
    const LANES_MEET: bool = false;
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let width = V::<S, f32>::LANES;
        let mut outside = Vec::new();
        for (first, (x, out)) in
            (0..).step_by(width).zip(self.x.chunks_exact(width).zip(self.out.chunks_exact_mut(width)))
        {
            let lanes = V::<S, f32>::load(x);
            value::<S, Q>(self.table, lanes).store(out);
            note_outside::<S>(lanes, first, &mut outside);
        }
        let whole = self.x.len() / width * width;
        let (rest, out) = (&self.x[whole..], &mut self.out[whole..]);
        let lanes = V::<S, f32>::load_partial(rest, 1.0);
        value::<S, Q>(self.table, lanes).store_partial(out);
        note_outside::<S>(lanes, whole, &mut outside);
        let x: Vec<f64> = outside.iter().map(|&place| self.x[place].into()).collect();
        let mut values = vec![0.0; x.len()];
        if !x.is_empty() {
            S::call(ByFormula::<Q, f64> { order: self.order, x: &x, out: &mut values, quantity: PhantomData });
        }
        for (&place, value) in outside.iter().zip(values) {
            self.out[place] = value as f32;
        }
    }
}

/// The function, from what the table holds: the function itself, or its product with x^2.
#[inline(always)]
fn value<S: Simd, Q: Quantity>(table: &Table, x: V<S, f32>) -> V<S, f32> {
    match Q::TABLE {
        Tabulated::TimesSquare => table.value::<S>(x) / (x * x),
        _ => table.value::<S>(x),
    }
}

/// Adds the positions of lanes that the table does not cover; the first lane has position `first`.
#[inline(always)]
fn note_outside<S: Simd>(lanes: V<S, f32>, first: usize, places: &mut Vec<usize>) {
    // Bits of lanes at or below the start of the first piece, at the end of the last or above, or NaN.
    let outside = V::<S, f32>::from(PIECES_FROM).not_less_bits(lanes) | lanes.not_less_bits(PIECES_TO);
    if outside != 0 {
        places.extend((0..V::<S, f32>::LANES).filter(|lane| outside >> lane & 1 == 1).map(|lane| first + lane));
    }
}

/// Quadratics c0 + u (c1 + u c2) on the pieces, with u in [-1/128, 1/128] from the middle of each.
pub struct Table {
    coefficients: [Box<[f32; PIECES]>; 3],
}

/// Tables by quantity and order, the one used last at the end; 20 KB each.
type Tables = VecDeque<((TypeId, u64), Arc<Table>)>;
static TABLES: Mutex<Tables> = Mutex::new(VecDeque::new());
const TABLES_KEPT: usize = 256;

impl Table {
    #[inline(always)]
    fn value<S: Simd>(&self, x: V<S, f32>) -> V<S, f32> {
        let [c0, c1, c2] = &self.coefficients;
        let u = x.place() - (1.0 + 1.0 / 128.0);
        u.mul_add(u.mul_add(x.lookup(c2), x.lookup(c1)), x.lookup(c0))
    }

    /// The table of this order: a stored one, else a new one.
    pub fn of<Q: Quantity>(order: f64) -> Arc<Self> {
        let key = (TypeId::of::<Q>(), order.to_bits());
        let locked = || TABLES.lock().unwrap_or_else(PoisonError::into_inner);
        let take = |tables: &mut Tables| tables.iter().position(|(k, _)| *k == key).and_then(|i| tables.remove(i));
        let found = take(&mut locked());
        // Tables are made without the lock, so that no fork can find it held for long.
        let (_, table) = found.unwrap_or_else(|| (key, Arc::new(Self::new::<Q>(order))));
        let mut tables = locked();
        take(&mut tables);
        tables.push_back((key, table.clone()));
        if tables.len() > TABLES_KEPT {
            tables.pop_front();
        }
        table
    }

    /// Interpolates at the Chebyshev nodes -b, 0, b of each piece.
    fn new<Q: Quantity>(order: f64) -> Self {
        let half = 1.0 / 128.0;
        let b = half * 0.75_f64.sqrt();
        let mut x = Vec::with_capacity(3 * PIECES);
        for i in 0..PIECES {
            let octave = PIECES_FROM * f64::powi(2.0, (i / 64) as i32);
            let middle = 1.0 + half + (i % 64) as f64 / 64.0;
            x.extend([-b, 0.0, b].map(|u| octave * (middle + u)));
        }
        let mut y = vec![0.0; x.len()];
        by_formula::<Q, f64>(&[order], &x, &mut y);
        if Q::TABLE == Tabulated::TimesSquare {
            y.iter_mut().zip(&x).for_each(|(y, x)| *y *= x * x);
        }
        let coefficient = |f: fn(&[f64], f64) -> f64| -> Box<[f32; PIECES]> {
            let all: Vec<f32> = y.chunks_exact(3).map(|y| f(y, b) as f32).collect();
            all.try_into().expect("one for each piece")
        };
        Table {
            coefficients: [
                coefficient(|y, _| y[1]),
                coefficient(|y, b| (y[2] - y[0]) / (2.0 * b)),
                coefficient(|y, b| ((y[2] - y[1]) - (y[1] - y[0])) / (2.0 * b * b)),
            ],
        }
    }
}
