//! What a kernel is compiled for, as data; and the one place where that becomes the text of `variant.cuh`.

use std::fmt::Write;

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

/// What is the host's alone.
impl Group for usize {
    fn list(&self, _: &mut Constants) {}
}
