//! Samples thinned out for a graph: largest triangle, three buckets.
//!
//! The first and the last sample stay; between them the samples are cut into equal buckets, and of
//! each bucket the one stays that spans the largest triangle with the one kept before it and the
//! mean of the next bucket (S. Steinarsson, "Downsampling Time Series for Visual Representation",
//! 2013). Values that are no numbers have no triangles: such samples are left as they are.

use super::Downsample;
use crate::{interface::Aggregation, payload::Value, store::Sample};

/// A sample as a point: milliseconds and value.
#[derive(Clone, Copy)]
struct Point {
    x: f64,
    y: f64,
}

/// `wish.to` of the samples, or all where that is not fewer, or where they have no numbers.
pub(super) fn thin_out(
    samples: Vec<Sample>,
    wish: &Downsample,
    aggregation: Aggregation,
) -> Vec<Sample> {
    if wish.to <= 2 || samples.len() <= wish.to {
        return samples;
    }
    let points: Option<Vec<Point>> = samples
        .iter()
        .map(|sample| point(sample, wish, aggregation))
        .collect();
    let Some(points) = points else { return samples };
    let mut kept = chosen(&points, wish.to).into_iter().peekable();
    let with_index = samples.into_iter().enumerate();
    with_index
        .filter(|(index, _)| kept.next_if_eq(index).is_some())
        .map(|(_, sample)| sample)
        .collect()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a graph has fewer dots than a double has digits"
)]
fn point(sample: &Sample, wish: &Downsample, aggregation: Aggregation) -> Option<Point> {
    let value = match (aggregation, &sample.value) {
        (Aggregation::Individual, value) => value,
        (Aggregation::Object, Value::Object(members)) => {
            let key = wish.key.as_deref()?;
            members.iter().find(|(known, _)| known == key)?.1.as_ref()?
        }
        (Aggregation::Object, _) => return None,
    };
    let y = match value {
        Value::Double(number) => *number,
        Value::Integer(number) => f64::from(*number),
        Value::LongInteger(number) => *number as f64,
        _ => return None,
    };
    Some(Point {
        x: sample.value_at.as_millis() as f64,
        y,
    })
}

/// The places of the points that stay, ascending.
fn chosen(points: &[Point], to: usize) -> Vec<usize> {
    let inner = points.len() - 2;
    let buckets = to - 2;
    // bucket b covers the places from bounds(b) to bounds(b + 1); the last point is one by itself
    let bounds = |bucket: usize| 1 + bucket * inner / buckets;
    let mut kept = vec![0];
    for bucket in 0..buckets {
        let next = if bucket + 1 == buckets {
            &points[points.len() - 1..]
        } else {
            &points[bounds(bucket + 1)..bounds(bucket + 2)]
        };
        let mean = mean(next);
        let before = points[kept[kept.len() - 1]];
        let places = bounds(bucket)..bounds(bucket + 1);
        let area = |place: &usize| area(before, points[*place], mean);
        if let Some(largest) = places.max_by(|a, b| area(a).total_cmp(&area(b))) {
            kept.push(largest);
        }
    }
    kept.push(points.len() - 1);
    kept
}

#[expect(clippy::cast_precision_loss, reason = "there are at most 10,000")]
fn mean(points: &[Point]) -> Point {
    let count = points.len() as f64;
    let sum = |of: fn(&Point) -> f64| points.iter().map(of).sum::<f64>() / count;
    Point {
        x: sum(|point| point.x),
        y: sum(|point| point.y),
    }
}

/// Twice the area of a triangle.
fn area(a: Point, b: Point, c: Point) -> f64 {
    ((a.x - c.x) * (b.y - a.y) - (a.x - b.x) * (c.y - a.y)).abs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;

    fn samples(values: &[f64]) -> Vec<Sample> {
        let at = |index: usize| {
            Timestamp::from_millis(i64::try_from(index).expect("small") * 1000).expect("in range")
        };
        values
            .iter()
            .enumerate()
            .map(|(index, value)| Sample {
                value_at: at(index),
                received_at: at(index),
                value: Value::Double(*value),
            })
            .collect()
    }

    #[test]
    fn peaks_ends_and_the_number_asked_for_stay() {
        let mut values = vec![0.0; 1000];
        values[437] = 50.0;
        values[801] = -50.0;
        let wish = Downsample { to: 20, key: None };
        let thinned = thin_out(samples(&values), &wish, Aggregation::Individual);
        assert_eq!(thinned.len(), 20);
        let kept: Vec<i64> = thinned
            .iter()
            .map(|it| it.value_at.as_millis() / 1000)
            .collect();
        let at = |second: i64| kept.contains(&second);
        assert!(at(0) && at(437) && at(801) && at(999));
        assert!(thinned.is_sorted_by_key(|sample| sample.value_at));
    }

    #[test]
    fn few_samples_and_those_without_numbers_are_left_as_they_are() {
        let wish = Downsample { to: 3, key: None };
        assert_eq!(
            thin_out(samples(&[1.0, 2.0]), &wish, Aggregation::Individual).len(),
            2
        );
        let mut texts = samples(&[1.0, 2.0, 3.0, 4.0]);
        texts[2].value = Value::String("x".into());
        assert_eq!(thin_out(texts, &wish, Aggregation::Individual).len(), 4);
        let objects = samples(&[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(thin_out(objects, &wish, Aggregation::Object).len(), 4);
    }
}
