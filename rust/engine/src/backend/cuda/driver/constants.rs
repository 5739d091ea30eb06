//! What a kernel is compiled for, as data; and the one place where that becomes the text of `variant.cuh`.

use std::fmt::Write;

use super::source::{Source, Variant};

/// The value of a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Value {
    Number(usize),
    Flag(bool),
    /// The bits of a float.
    Float(u32),
    /// A name that the kernel knows.
    Name(&'static str),
}

impl Value {
    /// Of a constant of type `ty`.
    fn text(self, ty: &str) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Flag(flag) => flag.to_string(),
            Self::Float(bits) if ty == "float" => format!("{:e}f", f32::from_bits(bits)),
            Self::Float(bits) => format!("{bits}u"),
            Self::Name(name) => name.into(),
        }
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        Self::Number(number)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<f32> for Value {
    fn from(float: f32) -> Self {
        Self::Float(float.to_bits())
    }
}

impl From<&'static str> for Value {
    fn from(name: &'static str) -> Self {
        Self::Name(name)
    }
}

/// One line of `variant.cuh`, or what an `enum` or a function of it takes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Line {
    /// C type, name in small letters, and value; one of a float that is no `float` is its bits.
    Constant(&'static str, &'static str, Value),
    /// The names of an `enum`.
    Names(&'static [&'static str]),
    Include(&'static str),
    /// A name for a type.
    Using(String, String),
    /// A condition, and what it is about.
    Assert(String, &'static str),
    /// A function, whole.
    Function(String),
}

/// What a kernel is compiled for, line by line.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Constants(Vec<Line>);

impl Constants {
    pub fn push(&mut self, line: Line) {
        self.0.push(line);
    }

    pub fn constant(&mut self, ty: &'static str, name: &'static str, value: impl Into<Value>) {
        self.push(Line::Constant(ty, name, value.into()));
    }

    /// The value of the constant `name`, in capitals, where the kernel has it.
    pub fn get(&self, name: &str) -> Option<Value> {
        self.0.iter().find_map(|line| match line {
            Line::Constant(_, its, value) if its.to_uppercase() == name => Some(*value),
            _ => None,
        })
    }

    /// Whether the kernel has the constant `name`, and it is `value`.
    pub fn has(&self, name: &str, value: impl Into<Value>) -> bool {
        self.get(name) == Some(value.into())
    }

    /// Every constant, its name in capitals and its value.
    pub fn named(&self) -> impl Iterator<Item = (String, String)> + '_ {
        self.0.iter().filter_map(|line| match line {
            Line::Constant(ty, name, value) => Some((name.to_uppercase(), value.text(ty))),
            Line::Using(name, ty) => Some((name.clone(), ty.clone())),
            _ => None,
        })
    }

    /// The text of `variant.cuh`.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for line in &self.0 {
            let _ = match line {
                Line::Constant(ty, name, value) => {
                    let (name, value) = (name.to_uppercase(), value.text(ty));
                    writeln!(text, "constexpr {ty} {name} = {value};")
                }
                Line::Names(names) => writeln!(text, "enum {{ {} }};", names.join(", ")),
                Line::Include(header) => writeln!(text, "#include \"{header}\""),
                Line::Using(name, ty) => writeln!(text, "using {name} = {ty};"),
                Line::Assert(what, about) => writeln!(text, "static_assert({what}, \"{about}\");"),
                Line::Function(function) => write!(text, "{function}"),
            };
        }
        text
    }
}

/// Constants that stand together.
pub trait Group {
    /// Appends them to `list`.
    fn list(&self, list: &mut Constants);

    /// They alone.
    fn constants(&self) -> Constants {
        let mut list = Constants::default();
        self.list(&mut list);
        list
    }
}

/// All that a kernel of one source is compiled for.
pub trait Kernel: Group {
    fn source() -> &'static Source;
}

impl<K: Kernel> From<K> for Variant {
    fn from(kernel: K) -> Self {
        Self::new(K::source(), kernel.constants())
    }
}

/// What is the host's alone.
impl Group for usize {
    fn list(&self, _: &mut Constants) {}
}

/// Declares groups of constants. A field of a C type is one, by its own name in capitals; `bits` are those of a
/// float, `name` is one that the kernel knows. Any other is a group. `in` a source, the group is all that its
/// kernels are compiled for; `with` names, they have an `enum` of these.
macro_rules! constants {
    ($(
        $(#[$meta:meta])*
        $vis:vis struct $name:ident $(in $source:ident)? $(with { $($known:ident),+ })* {
            $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $ty:ident,)*
        }
    )*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        $vis struct $name {
            $($(#[$field_meta])* $field_vis $field:
                $crate::backend::cuda::driver::constants::constants!(@type $ty),)*
        }

        impl $crate::backend::cuda::driver::constants::Group for $name {
            fn list(&self, list: &mut $crate::backend::cuda::driver::constants::Constants) {
                $(list.push($crate::backend::cuda::driver::constants::Line::Names(
                    &[$(stringify!($known)),+],
                ));)*
                $($crate::backend::cuda::driver::constants::constants!(
                    @list list, $field, self.$field, $ty
                );)*
            }
        }

        $(impl $crate::backend::cuda::driver::constants::Kernel for $name {
            fn source() -> &'static $crate::backend::cuda::driver::source::Source {
                &$source
            }
        })?
    )*};
    (@type int) => { usize };
    (@type uint32_t) => { usize };
    (@type float) => { f32 };
    (@type bits) => { f32 };
    (@type name) => { &'static str };
    (@type $ty:ident) => { $ty };
    (@list $list:ident, $field:ident, $value:expr, int) => {
        $list.constant("int", stringify!($field), $value)
    };
    (@list $list:ident, $field:ident, $value:expr, uint32_t) => {
        $list.constant("uint32_t", stringify!($field), $value)
    };
    (@list $list:ident, $field:ident, $value:expr, bool) => {
        $list.constant("bool", stringify!($field), $value)
    };
    (@list $list:ident, $field:ident, $value:expr, float) => {
        $list.constant("float", stringify!($field), $value)
    };
    (@list $list:ident, $field:ident, $value:expr, bits) => {
        $list.constant("uint32_t", stringify!($field), $value)
    };
    (@list $list:ident, $field:ident, $value:expr, name) => {
        $list.constant("int", stringify!($field), $value)
    };
    (@list $list:ident, $field:ident, $value:expr, $ty:ident) => {
        $crate::backend::cuda::driver::constants::Group::list(&$value, $list)
    };
}
pub(in crate::backend::cuda) use constants;

#[cfg(test)]
mod tests {
    use super::*;

    constants! {
        struct Inner with { NEAR, FAR } {
            place: name,
            factor: float,
        }

        struct Outer {
            n: uint32_t,
            own: usize,
            inner: Inner,
            half_bits: bits,
            is_last: bool,
        }
    }

    #[test]
    fn groups_are_listed_where_they_stand_and_found_by_name() {
        let inner = Inner {
            place: "FAR",
            factor: 0.5,
        };
        let list = Outer {
            n: 3,
            own: 7,
            inner,
            half_bits: 1.0,
            is_last: true,
        };
        let list = list.constants();
        let lines = [
            "constexpr uint32_t N = 3;",
            "enum { NEAR, FAR };",
            "constexpr int PLACE = FAR;",
            "constexpr float FACTOR = 5e-1f;",
            "constexpr uint32_t HALF_BITS = 1065353216u;",
            "constexpr bool IS_LAST = true;\n",
        ];
        assert_eq!(list.text(), lines.join("\n"));
        assert_eq!(list.get("FACTOR"), Some(0.5.into()));
        assert!(list.has("PLACE", "FAR") && list.has("N", 3) && !list.has("N", 4));
        assert_eq!([list.get("NEAR"), list.get("OWN")], [None; 2]);
    }
}
