//! Which mapping a path belongs to: a tree of segments, walked without allocation.

use super::{conflicts::is_placeholder, segments};

/// Why a path belongs to no mapping. `name` gives Astarte's name of the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum PathError {
    /// No endpoint has this form.
    #[error("no endpoint of the interface has the form of this path")]
    MappingNotFound,
    /// Endpoints go on where the path ends.
    #[error("the path stops short: endpoints go on after it")]
    AmbiguousPath,
    /// It does not begin with `/`, has `//` in it, or a character that no topic may have.
    #[error("the path does not begin with a slash, or holds //, +, # or NUL")]
    InvalidPath,
}

impl PathError {
    /// Astarte's name of the error.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MappingNotFound => "mapping_not_found",
            Self::AmbiguousPath => "ambiguous_path",
            Self::InvalidPath => "invalid_path",
        }
    }
}

/// Endpoints as a tree. Node 0 is the root; an endpoint has at most 64 segments, and so has a walk.
#[derive(Clone, Debug)]
pub(super) struct Lookup {
    nodes: Vec<Node>,
}

#[derive(Clone, Debug, Default)]
struct Node {
    /// Sorted by the literal.
    literals: Vec<(Box<str>, usize)>,
    placeholder: Option<usize>,
    /// The mapping whose endpoint ends here.
    mapping: Option<usize>,
}

impl Lookup {
    /// The tree of endpoints that do not conflict; the place of each is its mapping.
    pub(super) fn new<'e>(endpoints: impl Iterator<Item = &'e str>) -> Self {
        let mut lookup = Self {
            nodes: vec![Node::default()],
        };
        for (mapping, endpoint) in endpoints.enumerate() {
            let end = segments(endpoint).fold(0, |node, segment| lookup.child(node, segment));
            lookup.nodes[end].mapping = Some(mapping);
        }
        lookup
    }

    /// The child of `node` for `segment`, made if need be.
    fn child(&mut self, node: usize, segment: &str) -> usize {
        let next = self.nodes.len();
        let parent = &mut self.nodes[node];
        let child = if is_placeholder(segment) {
            *parent.placeholder.get_or_insert(next)
        } else {
            match parent
                .literals
                .binary_search_by(|(known, _)| (**known).cmp(segment))
            {
                Ok(place) => parent.literals[place].1,
                Err(place) => {
                    parent.literals.insert(place, (segment.into(), next));
                    next
                }
            }
        };
        if child == next {
            self.nodes.push(Node::default());
        }
        child
    }

    /// The mapping of `path`.
    pub(super) fn find(&self, path: &str) -> Result<usize, PathError> {
        let rest = inner(path)?;
        let mut stops_short = false;
        match self.walk(0, rest, &mut stops_short) {
            Some(mapping) => Ok(mapping),
            None if stops_short => Err(PathError::AmbiguousPath),
            None => Err(PathError::MappingNotFound),
        }
    }

    /// Follows both branches where a literal and a placeholder fit: `/a/%{x}/b` and `/%{y}/c/d` do
    /// not conflict. Each node is visited once at most. Recursion ends with the longest endpoint.
    fn walk(&self, node: usize, rest: Option<&str>, stops_short: &mut bool) -> Option<usize> {
        let node = &self.nodes[node];
        let Some(rest) = rest else {
            *stops_short |= node.mapping.is_none();
            return node.mapping;
        };
        let (segment, rest) = match rest.split_once('/') {
            None => (rest, None),
            Some((segment, rest)) => (segment, Some(rest)),
        };
        let literal = node
            .literals
            .binary_search_by(|(known, _)| (**known).cmp(segment))
            .ok();
        literal
            .and_then(|place| self.walk(node.literals[place].1, rest, stops_short))
            .or_else(|| self.walk(node.placeholder?, rest, stops_short))
    }
}

/// What follows the first slash of a sound path, without one trailing slash; `None` for `/` alone.
pub(super) fn inner(path: &str) -> Result<Option<&str>, PathError> {
    let rest = path.strip_prefix('/').ok_or(PathError::InvalidPath)?;
    let mut last = b'/';
    for byte in rest.bytes() {
        if matches!(byte, b'+' | b'#' | 0) || (byte == b'/' && last == b'/') {
            return Err(PathError::InvalidPath);
        }
        last = byte;
    }
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    Ok((!rest.is_empty()).then_some(rest))
}
