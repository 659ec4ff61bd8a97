//! The lanes that kernels compute with: numbers of one type side by side in registers.

use super::{Float, Register, Simd, PIECES, PIECES_FROM, PIECES_TO, V};
use std::ops::{Add, Div, Mul, Neg, Sub};

/// A fixed number of lanes; every operation is lane by lane unless its documentation says otherwise. A float64 operand, as in
/// `2.0 * x + 1.0`, stands for lanes that are all equal to it, rounded to their type.
#[derive(Clone, Copy)]
pub struct Lanes<R>(pub R);

impl<R: Register> From<f64> for Lanes<R> {
    #[inline(always)]
    fn from(x: f64) -> Self {
        Lanes::splat(R::Elem::from_f64(x))
    }
}

macro_rules! operators {
    ($($trait:ident::$op:ident),+) => {
        $(
            impl<R: Register> $trait for Lanes<R> {
                type Output = Self;
                #[inline(always)]
                fn $op(self, b: Self) -> Self {
                    // SAFETY: lanes exist only inside `dispatch`, on a level that has the instructions.
                    Lanes(unsafe { self.0.$op(b.0) })
                }
            }
            impl<R: Register> $trait<f64> for Lanes<R> {
                type Output = Self;
                #[inline(always)]
                fn $op(self, b: f64) -> Self {
                    $trait::$op(self, Lanes::from(b))
                }
            }
            impl<R: Register> $trait<Lanes<R>> for f64 {
                type Output = Lanes<R>;
                #[inline(always)]
                fn $op(self, b: Lanes<R>) -> Lanes<R> {
                    $trait::$op(Lanes::from(self), b)
                }
            }
        )+
    };
}
operators!(Add::add, Sub::sub, Mul::mul, Div::div);

impl<R: Register> Neg for Lanes<R> {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        // SAFETY: as in `operators!`; this holds for all calls of register operations below.
        Lanes(unsafe { self.0.neg() })
    }
}

impl<R: Register> Lanes<R> {
    /// How many lanes there are: [`Float::LANES`], or one where a kernel takes one at a time.
    pub const LANES: usize = R::WIDTH;

    /// Lanes that are all equal to `x`.
    #[inline(always)]
    pub fn splat(x: R::Elem) -> Self {
        Lanes(unsafe { R::splat(x) })
    }

    /// Loads the first elements of a slice, which has at least as many as there are lanes.
    #[inline(always)]
    pub fn load(x: &[R::Elem]) -> Self {
        assert!(x.len() >= R::WIDTH);
        // SAFETY: the slice holds as many elements as the register.
        Lanes(unsafe { R::load(x.as_ptr()) })
    }

    /// Loads a slice that has at most as many elements as there are lanes; the other lanes are `fill`.
    #[inline(always)]
    pub fn load_partial(x: &[R::Elem], fill: R::Elem) -> Self {
        assert!(x.len() <= R::WIDTH);
        // SAFETY: the slice holds as many elements as are read.
        Lanes(unsafe { R::load_first(x.as_ptr(), x.len(), R::splat(fill)) })
    }

    /// Stores to the first elements of a slice, which has at least as many as there are lanes.
    #[inline(always)]
    pub fn store(self, out: &mut [R::Elem]) {
        assert!(out.len() >= R::WIDTH);
        // SAFETY: the slice holds as many elements as the register.
        unsafe { self.0.store(out.as_mut_ptr()) }
    }

    /// Stores the first lanes to a slice that has at most as many elements as there are lanes. Whole registers take no call of
    /// memmove, around which no register would keep its value.
    #[inline(always)]
    pub fn store_partial(self, out: &mut [R::Elem]) {
        if out.len() == R::WIDTH {
            return self.store(out);
        }
        out.copy_from_slice(&self.to_array()[..out.len()]);
    }

    /// Writes the columns from `from` on of as many rows as there are lanes, as many columns: those of one column side by side,
    /// `step` elements from those of the next.
    #[inline(always)]
    pub fn transpose(rows: &[&[R::Elem]], from: usize, out: &mut [R::Elem], step: usize) {
        assert!(rows.len() >= R::WIDTH && rows[..R::WIDTH].iter().all(|row| row.len() >= from + R::WIDTH));
        assert!(step >= R::WIDTH && out.len() >= (R::WIDTH - 1) * step + R::WIDTH);
        // SAFETY: the rows have the columns, and `out` has room for them.
        unsafe { R::transpose(rows, from, out.as_mut_ptr(), step) }
    }

    /// The lanes as the first elements of an array; the others are 0.
    #[inline(always)]
    pub fn to_array(self) -> [R::Elem; 16] {
        let mut out = [R::Elem::default(); 16];
        self.store(&mut out[..R::WIDTH]);
        out
    }

    /// `self * b + c`, rounded once.
    #[inline(always)]
    pub fn mul_add(self, b: impl Into<Self>, c: impl Into<Self>) -> Self {
        Lanes(unsafe { self.0.mul_add(b.into().0, c.into().0) })
    }

    /// Square root.
    #[inline(always)]
    pub fn sqrt(self) -> Self {
        Lanes(unsafe { self.0.sqrt() })
    }

    /// Absolute value.
    #[inline(always)]
    pub fn abs(self) -> Self {
        Lanes(unsafe { self.0.abs() })
    }

    /// `self < b ? self : b` (so a NaN in either gives `b`).
    #[inline(always)]
    pub fn min(self, b: impl Into<Self>) -> Self {
        Lanes(unsafe { self.0.min(b.into().0) })
    }

    /// `self > b ? self : b` (so a NaN in either gives `b`).
    #[inline(always)]
    pub fn max(self, b: impl Into<Self>) -> Self {
        Lanes(unsafe { self.0.max(b.into().0) })
    }

    /// The lesser of `self` and `b`; NaN where `self` is NaN.
    #[inline(always)]
    pub fn at_most(self, b: impl Into<Self>) -> Self {
        b.into().min(self)
    }

    /// The greater of `self` and `b`; NaN where `self` is NaN.
    #[inline(always)]
    pub fn at_least(self, b: impl Into<Self>) -> Self {
        b.into().max(self)
    }

    /// `self < b ? yes : no` (so a NaN in either gives `no`).
    #[inline(always)]
    pub fn if_less(self, b: impl Into<Self>, yes: impl Into<Self>, no: impl Into<Self>) -> Self {
        Lanes(unsafe { self.0.if_less(b.into().0, yes.into().0, no.into().0) })
    }

    /// `self > b ? yes : no` (so a NaN in either gives `no`).
    #[inline(always)]
    pub fn if_greater(self, b: impl Into<Self>, yes: impl Into<Self>, no: impl Into<Self>) -> Self {
        b.into().if_less(self, yes, no)
    }

    /// A mask whose bit `i` is set unless `self < b` in lane `i` (so a NaN in either sets it).
    #[inline(always)]
    pub fn not_less_bits(self, b: impl Into<Self>) -> u32 {
        unsafe { self.0.not_less_bits(b.into().0) }
    }

    /// The unbiased exponent as a number: floor(log2 |x|) for normal x.
    #[inline(always)]
    pub fn exponent(self) -> Self {
        Lanes(unsafe { self.0.exponent() })
    }

    /// The significand in [1, 2) of a normal x; its sign is dropped.
    #[inline(always)]
    pub fn significand(self) -> Self {
        Lanes(unsafe { self.0.significand() })
    }

    /// 2 to the power of `self`, an integer that is the exponent of a normal number.
    #[inline(always)]
    pub fn pow2(self) -> Self {
        Lanes(unsafe { self.0.pow2() })
    }

    /// The entry of `table` for the piece, one of [`PIECES`], that each lane lies in; lanes outside all pieces get any entry.
    #[inline(always)]
    pub fn lookup(self, table: &[R::Elem; PIECES]) -> Self {
        let largest = PIECES_TO * (1.0 - 2.0 * R::Elem::ROUNDOFF);
        // SAFETY: the bounds, which NaN meets as well, keep every lane within the pieces.
        Lanes(unsafe { self.max(PIECES_FROM).min(largest).0.lookup(table.as_ptr()) })
    }

    /// The relative position in the piece of [`Lanes::lookup`], in [1, 1 + 1/64): the significand with its leading six bits
    /// cleared.
    #[inline(always)]
    pub fn place(self) -> Self {
        Lanes(unsafe { self.0.place() })
    }

    /// The sum of all lanes, by the fixed tree.
    #[inline(always)]
    pub fn sum(self) -> R::Elem {
        unsafe { self.0.sum() }
    }

    /// The product of all lanes, by the same tree.
    #[inline(always)]
    pub fn product(self) -> R::Elem {
        unsafe { self.0.product() }
    }

    /// [`Lanes::sum`] of four vectors, with fewer shuffles.
    #[inline(always)]
    pub fn sum_four([a, b, c, d]: [Self; 4]) -> [R::Elem; 4] {
        unsafe { R::sum_four([a.0, b.0, c.0, d.0]) }
    }
}

/// Numbers of [`Float::LANES`] lanes in as many vectors as a level takes for them. What is added up in them by position, and over
/// them by a tree, has the same bits whether a kernel takes all lanes at a time or one.
#[derive(Clone, Copy)]
pub struct AllLanes<S: Simd, T: Float>([V<S, T>; 16]);

impl<S: Simd, T: Float> AllLanes<S, T> {
    /// How many vectors the lanes are.
    const VECTORS: usize = T::LANES / V::<S, T>::LANES;

    /// Zeros.
    #[inline(always)]
    pub fn zeros() -> Self {
        AllLanes([V::<S, T>::splat(T::default()); 16])
    }

    /// The vector in which the element at this position has its lane.
    #[inline(always)]
    pub fn at(&mut self, position: usize) -> &mut V<S, T> {
        // The only vector has a constant index, by which the compiler keeps it in a register.
        &mut self.0[if Self::VECTORS == 1 { 0 } else { position / V::<S, T>::LANES % Self::VECTORS }]
    }

    /// The sum of all lanes, by the tree of [`Lanes::sum`].
    #[inline(always)]
    pub fn sum(mut self) -> T {
        let mut n = Self::VECTORS;
        while n > 1 {
            n /= 2;
            for i in 0..n {
                self.0[i] = self.0[i] + self.0[i + n];
            }
        }
        self.0[0].sum()
    }

    /// The product of all lanes, by the same tree.
    #[inline(always)]
    pub fn product(mut self) -> T {
        let mut n = Self::VECTORS;
        while n > 1 {
            n /= 2;
            for i in 0..n {
                self.0[i] = self.0[i] * self.0[i + n];
            }
        }
        self.0[0].product()
    }

    /// The product of one more than each lane, less 1, in float64 and in the order of lanes.
    #[inline(always)]
    pub fn product_less_one(self) -> f64 {
        let mut product = 0.0;
        for i in 0..Self::VECTORS {
            let lanes = self.0[i].to_array();
            for x in &lanes[..V::<S, T>::LANES] {
                let x = x.to_f64();
                product += x + x * product;
            }
        }
        product
    }
}
