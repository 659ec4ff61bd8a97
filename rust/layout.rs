//! Structs and constants that Rust and CUDA share. They are declared once, here in Rust, by [`shared_with_cuda`];
//! `cuda/arguments.cuh` holds the same declarations in C++, which a test in `cuda` makes of them.

/// Declares constants, or structs of C's layout, that kernels know by the same names.
///
/// Doc comments become comments. A constant is an `int` in C++. A field has the C++ type that belongs to its Rust type
/// ([`InCuda`]) unless `as` names another one, as it does for addresses. That structs have no gaps, so that a field begins
/// where the one before it ends, is asserted here; the C++ text asserts the same size, which leaves none there either.
macro_rules! shared_with_cuda {
    ($($(#[doc = $doc:literal])* $vis:vis const $name:ident: $type:ty = $value:expr;)*) => {
        $($(#[doc = $doc])* $vis const $name: $type = $value;)*

        /// The constants in C++.
        #[cfg(test)]
        pub fn declarations() -> String {
            [$($crate::layout::constant(&[$($doc),*], stringify!($name), &$name.to_string())),*].concat()
        }
    };
    ($(
        $(#[doc = $doc:literal])*
        $vis:vis struct $name:ident {
            $($(#[doc = $field_doc:literal])* $field_vis:vis $field:ident: $type:ty $(as $cpp:literal)?,)*
        }
    )*) => {$(
        $(#[doc = $doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default)]
        $vis struct $name {
            $($(#[doc = $field_doc])* $field_vis $field: $type,)*
        }

        const _: () = {
            let mut end = 0;
            $(
                assert!(std::mem::offset_of!($name, $field) == end);
                end += size_of::<$type>();
            )*
            assert!(size_of::<$name>() == end);
        };

        #[cfg(test)]
        impl $crate::layout::InCuda for $name {
            fn name() -> String {
                stringify!($name).into()
            }
            fn declaration() -> String {
                let fields = [$($crate::layout::field::<$type>(
                    &[$($field_doc),*],
                    concat!($($cpp)?),
                    stringify!($field),
                )),*];
                $crate::layout::structure(&[$($doc),*], stringify!($name), &fields, size_of::<$name>())
            }
        }
    )*};
}
pub(crate) use shared_with_cuda;

#[cfg(test)]
pub use text::{constant, field, structure, InCuda};

/// How declarations are written in C++.
#[cfg(test)]
mod text {
    /// A type that kernels know too.
    pub trait InCuda {
        /// Its name in C++; that of the elements for an array.
        fn name() -> String;
        /// The text after the name of an array.
        fn dimensions() -> String {
            String::new()
        }
        /// How C++ declares it, unless it is built in.
        fn declaration() -> String {
            String::new()
        }
    }

    macro_rules! built_in {
        ($($rust:ty: $cpp:literal),*) => {
            $(impl InCuda for $rust {
                fn name() -> String {
                    $cpp.into()
                }
            })*
        };
    }
    built_in!(i64: "int64_t", u64: "uint64_t", usize: "uint64_t", f64: "double");

    impl<T: InCuda, const N: usize> InCuda for [T; N] {
        fn name() -> String {
            T::name()
        }
        fn dimensions() -> String {
            format!("[{N}]{}", T::dimensions())
        }
    }

    /// The declaration of a field of the type `T`, or, if that is not empty, of the C++ type `cpp`.
    pub fn field<T: InCuda>(doc: &[&str], cpp: &str, name: &str) -> String {
        let cpp = if cpp.is_empty() { T::name() } else { cpp.into() };
        format!("{}    {cpp} {name}{};\n", comment(doc, "    "), T::dimensions())
    }

    /// Lines of a doc comment.
    fn comment(doc: &[&str], indent: &str) -> String {
        doc.iter().map(|line| format!("{indent}//{line}\n")).collect()
    }

    /// A constant.
    pub fn constant(doc: &[&str], name: &str, value: &str) -> String {
        format!("{}constexpr int {name} = {value};\n", comment(doc, ""))
    }

    /// A struct, and the assertion of its size.
    pub fn structure(doc: &[&str], name: &str, fields: &[String], size: usize) -> String {
        let doc = comment(doc, "");
        format!("\n{doc}struct {name} {{\n{}}};\nstatic_assert(sizeof({name}) == {size});\n", fields.concat())
    }
}
