//! JSON as the APIs show and take values (spec: JSON form of values).

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde_json::{Map, Value as Json};

use super::{
    Value, ValueType,
    check::{self, Found, OUT_OF_RANGE, OUT_OF_YEARS, ObjectTypes, Source, ValueError},
};
use crate::clock::Timestamp;

/// How longintegers are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BigIntegers {
    /// As numbers: snapshots, properties, and `allow_bigintegers`.
    #[default]
    Numbers,
    /// As decimal strings: series and objects.
    Strings,
    /// As numbers up to 2^52 - 1 either side of zero, as strings beyond (`allow_safe_bigintegers`).
    SafeNumbers,
}

/// How values are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// How longintegers are shown.
    pub big_integers: BigIntegers,
    /// Whether times are shown as milliseconds since the epoch instead of ISO 8601
    /// (`keep_milliseconds`).
    pub milliseconds: bool,
}

impl Style {
    /// Largest magnitude of a longinteger that is shown as a number by
    /// [`BigIntegers::SafeNumbers`].
    pub const SAFE_MAX: u64 = (1 << 52) - 1;

    /// A point of time in this style.
    #[must_use]
    pub fn time(self, at: Timestamp) -> Json {
        if self.milliseconds {
            at.as_millis().into()
        } else {
            at.to_string().into()
        }
    }

    fn long_integer(self, number: i64) -> Json {
        let as_number = match self.big_integers {
            BigIntegers::Numbers => true,
            BigIntegers::Strings => false,
            BigIntegers::SafeNumbers => number.unsigned_abs() <= Self::SAFE_MAX,
        };
        if as_number {
            number.into()
        } else {
            number.to_string().into()
        }
    }
}

impl Value {
    /// The value as the APIs show it.
    #[must_use]
    pub fn to_json(&self, style: Style) -> Json {
        let blob = |bytes: &Bytes| Json::from(STANDARD.encode(bytes));
        match self {
            Self::Double(number) => (*number).into(),
            Self::Integer(number) => (*number).into(),
            Self::Boolean(truth) => (*truth).into(),
            Self::LongInteger(number) => style.long_integer(*number),
            Self::String(text) => text.as_str().into(),
            Self::BinaryBlob(bytes) => blob(bytes),
            Self::DateTime(at) => style.time(*at),
            Self::DoubleArray(all) => all.as_slice().into(),
            Self::IntegerArray(all) => all.as_slice().into(),
            Self::BooleanArray(all) => all.as_slice().into(),
            Self::LongIntegerArray(all) => all
                .iter()
                .map(|number| style.long_integer(*number))
                .collect(),
            Self::StringArray(all) => all.as_slice().into(),
            Self::BinaryBlobArray(all) => all.iter().map(blob).collect(),
            Self::DateTimeArray(all) => all.iter().map(|at| style.time(*at)).collect(),
            Self::Object(members) => members
                .iter()
                .map(|(key, member)| {
                    let shown = member
                        .as_ref()
                        .map_or(Json::Null, |value| value.to_json(style));
                    (key.clone(), shown)
                })
                .collect(),
        }
    }

    /// Reads a single value of `value_type` as the APIs take it. The verdict is the one that the
    /// same value gets over MQTT.
    ///
    /// # Errors
    /// When it is not one of that type; null never is.
    pub fn from_json(value_type: ValueType, json: &Json) -> Result<Self, ValueError> {
        check::individual(&json, value_type)
    }

    /// Reads an object of `types` as the APIs take it.
    ///
    /// # Errors
    /// When it is no object, a member is not one of `types`, or a required one is missing.
    pub fn object_from_json(types: &impl ObjectTypes, json: &Json) -> Result<Self, ValueError> {
        match json {
            Json::Object(members) => check::object(members_of(members), types),
            other => Err(check::wrong_aggregation("object", (&other).found())),
        }
    }
}

fn members_of(members: &Map<String, Json>) -> impl Iterator<Item = (&str, &Json)> {
    members.iter().map(|(key, member)| (key.as_str(), member))
}

impl<'a> Source<'a> for &'a Json {
    fn is_null(&self) -> bool {
        Json::is_null(self)
    }

    fn found(&self) -> Found {
        match self {
            Json::Null => "null",
            Json::Bool(_) => "boolean",
            Json::Number(number) if number.is_f64() => "double",
            Json::Number(_) => "integer",
            Json::String(_) => "string",
            Json::Array(_) => "array",
            Json::Object(_) => "object",
        }
    }

    fn double(&self) -> Result<f64, Found> {
        self.as_f64()
            .filter(|number| number.is_finite())
            .ok_or_else(|| self.found())
    }

    fn integer(&self) -> Result<i32, Found> {
        match self {
            Json::Number(number) if !number.is_f64() => number
                .as_i64()
                .and_then(|number| number.try_into().ok())
                .ok_or(OUT_OF_RANGE),
            _ => Err(self.found()),
        }
    }

    fn long_integer(&self) -> Result<i64, Found> {
        match self {
            Json::Number(number) if !number.is_f64() => number.as_i64().ok_or(OUT_OF_RANGE),
            Json::String(digits) => decimal(digits),
            _ => Err(self.found()),
        }
    }

    fn boolean(&self) -> Result<bool, Found> {
        self.as_bool().ok_or_else(|| self.found())
    }

    fn string(&self) -> Result<&'a str, Found> {
        match self {
            Json::String(text) => Ok(text),
            _ => Err(self.found()),
        }
    }

    fn blob(&self) -> Result<Bytes, Found> {
        match self {
            Json::String(text) => STANDARD
                .decode(text)
                .map(Bytes::from)
                .map_err(|_| "a string that is not base64"),
            _ => Err(self.found()),
        }
    }

    fn time(&self) -> Result<Timestamp, Found> {
        let millis = match self {
            Json::String(text) => Timestamp::parse(text)
                .map(Timestamp::as_millis)
                .ok_or("a string that is not an ISO 8601 time")?,
            Json::Number(number) if !number.is_f64() => number.as_i64().ok_or(OUT_OF_YEARS)?,
            _ => return Err(self.found()),
        };
        Timestamp::from_millis(millis).ok_or(OUT_OF_YEARS)
    }

    fn elements(&self) -> Result<Box<dyn Iterator<Item = Self> + 'a>, Found> {
        match self {
            Json::Array(elements) => Ok(Box::new(elements.iter())),
            _ => Err(self.found()),
        }
    }
}

/// A decimal number in a string: an optional minus and digits.
fn decimal(text: &str) -> Result<i64, Found> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("a string that is not a decimal number");
    }
    text.parse().map_err(|_| OUT_OF_RANGE)
}
