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
    /// C type and name, such as `uint32_t WARPS`. Of a float that is no `float`, the constant is its bits.
    Constant(&'static str, Value),
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

    /// The value of the constant `name`, where the kernel has it.
    pub fn get(&self, name: &str) -> Option<Value> {
        self.0.iter().find_map(|line| match line {
            Line::Constant(declared, value) if declared.rsplit(' ').next() == Some(name) => {
                Some(*value)
            }
            _ => None,
        })
    }

    /// Whether the kernel has the constant `name`, and it is `value`.
    pub fn has(&self, name: &str, value: impl Into<Value>) -> bool {
        self.get(name) == Some(value.into())
    }

    /// The text of `variant.cuh`.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for line in &self.0 {
            let _ = match line {
                Line::Constant(declared, value) => {
                    let _ = write!(text, "constexpr {declared} = ");
                    let _ = match value {
                        Value::Number(number) => write!(text, "{number}"),
                        Value::Flag(flag) => write!(text, "{flag}"),
                        Value::Float(bits) if declared.starts_with("float ") => {
                            write!(text, "{:e}f", f32::from_bits(*bits))
                        }
                        Value::Float(bits) => write!(text, "{bits}u"),
                        Value::Name(name) => write!(text, "{name}"),
                    };
                    writeln!(text, ";")
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

    fn variant(&self) -> Variant {
        Variant::new(Self::source(), self.constants())
    }
}

/// Declares groups of constants: a field with a C type and name is one, any other a group. `in` a source, the
/// group is all that its kernels are compiled for; `with` names, they have an `enum` of these.
macro_rules! constants {
    ($(
        $(#[$meta:meta])*
        $vis:vis struct $name:ident $(in $source:ident)? $(with { $($known:ident),+ })* {
            $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $ty:ty $(= $declared:literal)?,)*
        }
    )*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        $vis struct $name {
            $($(#[$field_meta])* $field_vis $field: $ty,)*
        }

        impl $crate::backend::cuda::driver::constants::Group for $name {
            fn list(&self, list: &mut $crate::backend::cuda::driver::constants::Constants) {
                $(list.push($crate::backend::cuda::driver::constants::Line::Names(
                    &[$(stringify!($known)),+],
                ));)*
                $($crate::backend::cuda::driver::constants::constants!(
                    @field list, self.$field $(, $declared)?
                );)*
            }
        }

        $(impl $crate::backend::cuda::driver::constants::Kernel for $name {
            fn source() -> &'static $crate::backend::cuda::driver::source::Source {
                &$source
            }
        })?
    )*};
    (@field $list:ident, $value:expr, $declared:literal) => {
        $list.push($crate::backend::cuda::driver::constants::Line::Constant(
            $declared,
            $value.into(),
        ))
    };
    (@field $list:ident, $value:expr) => {
        $crate::backend::cuda::driver::constants::Group::list(&$value, $list)
    };
}
pub(in crate::backend::cuda) use constants;

#[cfg(test)]
mod tests {
    use super::*;

    constants! {
        struct Inner with { NEAR, FAR } {
            place: &'static str = "int PLACE",
            factor: f32 = "float FACTOR",
        }

        struct Outer {
            n: usize = "uint32_t N",
            inner: Inner,
            bits: f32 = "uint32_t BITS",
            is_last: bool = "bool LAST",
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
            inner,
            bits: 1.0,
            is_last: true,
        };
        let list = list.constants();
        let lines = [
            "constexpr uint32_t N = 3;",
            "enum { NEAR, FAR };",
            "constexpr int PLACE = FAR;",
            "constexpr float FACTOR = 5e-1f;",
            "constexpr uint32_t BITS = 1065353216u;",
            "constexpr bool LAST = true;\n",
        ];
        assert_eq!(list.text(), lines.join("\n"));
        assert_eq!(list.get("FACTOR"), Some(0.5.into()));
        assert!(list.has("PLACE", "FAR") && list.has("N", 3) && !list.has("N", 4));
        assert_eq!(list.get("NEAR"), None);
    }
}
