//! Fields of a JSON object, read by their rule; what is wrong with them is kept.

use serde_json::{Map, Value as Json};

use super::{MajorMinor, errors::Fields};

pub(super) const BLANK: &str = "can't be blank";
pub(super) const INVALID: &str = "is invalid";
pub(super) const MUST_BE_BLANK: &str = "must be blank";
pub(super) const FORMAT: &str = "has invalid format";

/// What a field's value may be, by name.
pub(super) type Names<T> = &'static [(&'static str, T)];

/// Reads fields of one JSON object and keeps what is wrong with them.
pub(super) struct Reader<'j> {
    object: &'j Map<String, Json>,
    pub(super) errors: Fields,
}

impl<'j> Reader<'j> {
    pub(super) const fn new(object: &'j Map<String, Json>) -> Self {
        Self {
            object,
            errors: Fields::new(),
        }
    }

    pub(super) fn error(&mut self, field: &'static str, message: impl Into<String>) {
        self.errors.entry(field).or_default().push(message.into());
    }

    /// The value, where it is neither absent nor null.
    pub(super) fn given(&self, field: &str) -> Option<&'j Json> {
        self.object.get(field).filter(|value| !value.is_null())
    }

    /// An error for a value that is given, but not of the field's type.
    pub(super) fn invalid_unless_some<T>(
        &mut self,
        field: &'static str,
        value: Option<T>,
    ) -> Option<T> {
        if value.is_none() {
            self.error(field, INVALID);
        }
        value
    }

    /// Text; empty text counts as absent.
    pub(super) fn text(&mut self, field: &'static str) -> Option<&'j str> {
        let text = self.given(field)?.as_str();
        self.invalid_unless_some(field, text)
            .filter(|text| !text.is_empty())
    }

    pub(super) fn bounded_text(
        &mut self,
        field: &'static str,
        characters_max: usize,
    ) -> Option<String> {
        let text = self.text(field)?;
        self.at_most(field, text, characters_max);
        Some(text.to_owned())
    }

    pub(super) fn at_most(&mut self, field: &'static str, text: &str, characters_max: usize) {
        if text.chars().nth(characters_max).is_some() {
            self.error(
                field,
                format!("should be at most {characters_max} character(s)"),
            );
        }
    }

    pub(super) fn name<T: Copy>(&mut self, field: &'static str, names: Names<T>) -> Option<T> {
        let text = self.text(field)?;
        let found = names.iter().find(|(name, _)| *name == text);
        self.invalid_unless_some(field, found.map(|(_, value)| *value))
    }

    pub(super) fn flag(&mut self, field: &'static str) -> Option<bool> {
        let truth = self.given(field)?.as_bool();
        self.invalid_unless_some(field, truth)
    }

    pub(super) fn integer(&mut self, field: &'static str) -> Option<i64> {
        let number = self.given(field)?.as_i64();
        self.invalid_unless_some(field, number)
    }

    /// An integer from 0 to 2,147,483,647.
    pub(super) fn count(&mut self, field: &'static str) -> Option<u32> {
        let number = self.integer(field)?;
        let count = u32::try_from(number)
            .ok()
            .filter(|count| *count <= MajorMinor::NUMBER_MAX);
        if number < 0 {
            self.error(field, "must be greater than or equal to 0");
        } else if count.is_none() {
            let most = MajorMinor::NUMBER_MAX;
            self.error(field, format!("must be less than or equal to {most}"));
        }
        count
    }

    /// An error for a required field that is absent and has none yet.
    pub(super) fn require<T>(&mut self, field: &'static str, value: Option<T>) -> Option<T> {
        if value.is_none() && !self.errors.contains_key(field) {
            self.error(field, BLANK);
        }
        value
    }

    /// An error where a field has another value than its default and may not.
    pub(super) fn default_only<T: PartialEq + Default>(&mut self, field: &'static str, value: &T) {
        if *value != T::default() {
            self.error(field, MUST_BE_BLANK);
        }
    }
}
