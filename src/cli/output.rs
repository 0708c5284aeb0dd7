//! What a verb says: results on standard output, messages on standard error.
//!
//! The only place that prints. With `--json` a result is one line of JSON whose shape is stable;
//! without it, a table or a few lines for people, in which control characters that a device may have
//! sent are made visible and do nothing to the terminal.

use std::{
    fmt::{self, Write as _},
    io::{self, BufRead, Write},
};

use serde_json::Value;

use super::exit::{Exit, Failure};

/// Where a verb reads and writes.
pub(super) struct Streams {
    pub(super) out: Box<dyn Write + Send>,
    pub(super) err: Box<dyn Write + Send>,
    pub(super) answers: Box<dyn BufRead + Send>,
    /// Whether someone is there to answer a question.
    pub(super) is_terminal: bool,
    /// Whether standard output shows colours.
    pub(super) is_coloured: bool,
}

impl Streams {
    pub(super) fn of_process() -> Self {
        use std::io::IsTerminal as _;

        Self {
            out: Box::new(io::stdout()),
            err: Box::new(io::stderr()),
            answers: Box::new(io::BufReader::new(io::stdin())),
            is_terminal: io::stdin().is_terminal() && io::stderr().is_terminal(),
            is_coloured: io::stdout().is_terminal(),
        }
    }
}

/// A column of a table: its header, and where its cells stand in each row (RFC 6901).
pub(super) struct Column(pub(super) &'static str, pub(super) &'static str);

/// Says things in the form that was asked for.
pub(super) struct Output {
    streams: Streams,
    json: bool,
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output")
            .field("json", &self.json)
            .finish_non_exhaustive()
    }
}

impl Output {
    pub(super) fn new(streams: Streams, json: bool) -> Self {
        Self { streams, json }
    }

    pub(super) fn is_json(&self) -> bool {
        self.json
    }

    /// A list: an array of objects, or a table of these columns.
    pub(super) fn list(&mut self, rows: &[Value], columns: &[Column]) {
        if self.json {
            self.line(&Value::from(rows.to_vec()).to_string());
        } else if rows.is_empty() {
            self.note("none");
        } else {
            self.print(&table(rows, columns));
        }
    }

    /// One object: as it is, or a line for each field.
    pub(super) fn object(&mut self, object: &Value) {
        if self.json {
            self.line(&object.to_string());
        } else {
            self.print(&record(object));
        }
    }

    /// Any value: as it is, or in the form that suits it.
    pub(super) fn value(&mut self, value: &Value) {
        match value {
            _ if self.json => self.line(&value.to_string()),
            Value::Array(rows) if !rows.is_empty() && rows.iter().all(Value::is_object) => {
                self.print(&table_of_all(rows));
            }
            Value::Array(_) | Value::Object(_) => {
                let pretty = format!("{value:#}");
                self.line(&pretty);
            }
            scalar => self.line(&cell(Some(scalar))),
        }
    }

    /// The same thing for both: an object with `--json`, this text without.
    pub(super) fn text(&mut self, object: &Value, text: &str) {
        if self.json {
            self.line(&object.to_string());
        } else {
            self.line(text.trim_end());
        }
    }

    /// Bytes that are the result themselves, such as a completion script.
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        // a reader that has gone, such as `head`, has seen enough
        let _ = self
            .streams
            .out
            .write_all(bytes)
            .and_then(|()| self.streams.out.flush());
    }

    /// What the command line parser has to say.
    pub(super) fn usage(&mut self, error: &clap::Error) {
        let rendered = error.render();
        let text = if self.streams.is_coloured {
            rendered.ansi().to_string()
        } else {
            rendered.to_string()
        };
        let stream = if error.use_stderr() {
            &mut self.streams.err
        } else {
            &mut self.streams.out
        };
        let _ = stream.write_all(text.as_bytes());
    }

    /// A message for people, on standard error.
    pub(super) fn note(&mut self, message: &str) {
        let _ = writeln!(self.streams.err, "{message}");
    }

    /// Why the verb failed, on standard error.
    pub(super) fn failure(&mut self, failure: &Failure) {
        let lines: Vec<_> = failure.message.split('\n').map(visible).collect();
        let _ = writeln!(self.streams.err, "tanit: {}", lines.join("\n"));
    }

    /// Asks whether to go on with something that cannot be undone.
    pub(super) fn confirm(&mut self, what: &str) -> Result<(), Failure> {
        if !self.streams.is_terminal {
            let message = format!("this would {what}; say --yes if it is meant");
            return Err(Failure::new(Exit::Usage, message));
        }
        let _ = write!(
            self.streams.err,
            "This will {}. Go on? [y/N] ",
            visible(what)
        );
        let _ = self.streams.err.flush();
        let mut answer = String::new();
        match self.streams.answers.read_line(&mut answer) {
            Ok(_) if matches!(answer.trim(), "y" | "Y" | "yes" | "Yes") => Ok(()),
            _ => Err(Failure::failed("nothing was done")),
        }
    }

    fn line(&mut self, text: &str) {
        self.print(&format!("{text}\n"));
    }

    fn print(&mut self, text: &str) {
        self.raw(text.as_bytes());
    }
}

fn table_of_all(rows: &[Value]) -> String {
    let mut names: Vec<&String> = Vec::new();
    for name in rows
        .iter()
        .filter_map(Value::as_object)
        .flat_map(serde_json::Map::keys)
    {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    // time first, as people read it
    names.sort_by_key(|name| !name.contains("timestamp"));
    let cells = |row: &Value| names.iter().map(|name| cell(row.get(name))).collect();
    let header = names.iter().map(|name| visible(name)).collect();
    align(header, rows.iter().map(cells).collect())
}

fn table(rows: &[Value], columns: &[Column]) -> String {
    let cells = |row: &Value| {
        columns
            .iter()
            .map(|column| cell(row.pointer(column.1)))
            .collect()
    };
    let header = columns.iter().map(|column| column.0.to_owned()).collect();
    align(header, rows.iter().map(cells).collect())
}

fn align(header: Vec<String>, rows: Vec<Vec<String>>) -> String {
    let lines: Vec<_> = std::iter::once(header).chain(rows).collect();
    let count = lines.first().map_or(0, Vec::len);
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<_> = (0..count)
        .map(|column| width(column).unwrap_or(0))
        .collect();
    let mut text = String::new();
    for line in &lines {
        let mut padded = String::new();
        for (cell, width) in line.iter().zip(&widths) {
            let _ = write!(padded, "{cell:width$}  "); // writing to a String cannot fail
        }
        text.push_str(padded.trim_end());
        text.push('\n');
    }
    text
}

/// A line for each field; the fields of an object within stand under its name and theirs, and a text
/// of more than one line goes on below itself.
fn record(object: &Value) -> String {
    let Some(fields) = object.as_object() else {
        return format!("{object:#}\n");
    };
    let mut lines = Vec::new();
    for (name, value) in fields {
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                lines.extend(
                    inner
                        .iter()
                        .map(|(key, value)| (format!("{name}.{key}"), value)),
                );
            }
            value => lines.push((name.clone(), value)),
        }
    }
    let lines: Vec<_> = lines
        .into_iter()
        .map(|(name, value)| (visible(&name), value))
        .collect();
    let width = lines
        .iter()
        .map(|(name, _)| name.chars().count())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for (name, value) in lines {
        let value = match value.as_str() {
            Some(value) => value.trim_end().split('\n').map(visible).collect(),
            None => vec![cell(Some(value))],
        };
        for (index, line) in value.iter().enumerate() {
            let name = if index == 0 { name.as_str() } else { "" };
            let padded = format!("{name:width$}  {line}");
            text.push_str(padded.trim_end());
            text.push('\n');
        }
    }
    text
}

/// One value on one line.
fn cell(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::Bool(true)) => "yes".to_owned(),
        Some(Value::Bool(false)) => "no".to_owned(),
        Some(Value::String(text)) => visible(text),
        Some(Value::Array(items)) if items.is_empty() => "-".to_owned(),
        Some(Value::Array(items)) if items.iter().all(|item| !item.is_object()) => {
            let items: Vec<_> = items.iter().map(|item| cell(Some(item))).collect();
            items.join(", ")
        }
        Some(Value::Object(fields)) if fields.is_empty() => "-".to_owned(),
        Some(other) => other.to_string(),
    }
}

/// The text with control characters written out.
pub(super) fn visible(text: &str) -> String {
    let mut visible = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            visible.extend(character.escape_default());
        } else {
            visible.push(character);
        }
    }
    visible
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_table_lines_up_and_shows_what_is_missing() {
        let rows = [
            json!({"id": "a", "connected": true, "session": {"queued_messages": 3}}),
            json!({"id": "longer", "connected": false, "session": null}),
        ];
        let columns = [
            Column("ID", "/id"),
            Column("CONNECTED", "/connected"),
            Column("QUEUED", "/session/queued_messages"),
        ];
        let expected = "\
ID      CONNECTED  QUEUED
a       yes        3
longer  no         -
";
        assert_eq!(table(&rows, &columns), expected);
    }

    #[test]
    fn what_a_device_sent_cannot_command_the_terminal() {
        assert_eq!(
            cell(Some(&json!("a\u{1b}[2Jb\u{7}\r"))),
            "a\\u{1b}[2Jb\\u{7}\\r"
        );
        assert_eq!(cell(Some(&json!("two\nlines"))), "two\\nlines");
        assert_eq!(record(&json!({"x\u{9b}": "ä"})), "x\\u{9b}  ä\n");
    }

    #[test]
    fn a_record_opens_objects_and_keeps_lines_together() {
        let object = json!({
            "certificate": {"serial": "4f", "not_after": null},
            "key": "-----BEGIN\nAAAA\n-----END\n",
            "session": {},
        });
        let expected = "\
certificate.not_after  -
certificate.serial     4f
key                    -----BEGIN
                       AAAA
                       -----END
session                -
";
        assert_eq!(record(&object), expected);
    }

    #[test]
    fn samples_are_a_table_with_the_time_first() {
        let rows = [json!({"value": 1.5, "timestamp": "2026-01-31T10:20:30.123Z"})];
        let expected = "\
timestamp                 value
2026-01-31T10:20:30.123Z  1.5
";
        assert_eq!(table_of_all(&rows), expected);
    }
}
