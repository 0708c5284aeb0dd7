//! A queue between two stages of a lane, taken from in batches.
//!
//! It has no bound of its own: everything in it holds room of the intake, or belongs to somebody
//! who waits for its answer, so that `push` never waits and memory is bounded all the same.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

/// What a taker takes at once: what is there, up to these bounds (one item at least).
#[derive(Clone, Copy, Debug)]
pub(super) struct TakeLimits {
    pub(super) items: usize,
    pub(super) bytes: usize,
}

/// What has a size in bytes, roughly.
pub(super) trait Weight {
    fn bytes(&self) -> usize;
}

/// A queue with many producers and one taker.
#[derive(Debug)]
pub(super) struct Queue<T> {
    state: Mutex<State<T>>,
    arrived: Notify,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    closed: bool,
}

/// Room that an empty queue keeps for the next burst, in items.
const KEPT_CAPACITY: usize = 1024;

impl<T: Weight> Queue<T> {
    pub(super) fn new() -> Self {
        let state = State {
            items: VecDeque::new(),
            closed: false,
        };
        Self {
            state: Mutex::new(state),
            arrived: Notify::new(),
        }
    }

    /// Appends; gives the item back when the queue is closed.
    pub(super) fn push(&self, item: T) -> Result<(), T> {
        let mut state = self.lock();
        if state.closed {
            return Err(item);
        }
        state.items.push_back(item);
        drop(state);
        self.arrived.notify_one();
        Ok(())
    }

    /// Takes what has arrived; waits while there is nothing. `None` once the queue is closed and
    /// empty.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub(super) async fn take(&self, limits: TakeLimits) -> Option<Vec<T>> {
        loop {
            {
                let mut state = self.lock();
                if !state.items.is_empty() {
                    return Some(state.take(limits));
                }
                if state.closed {
                    return None;
                }
            }
            self.arrived.notified().await;
        }
    }

    /// Takes every item for which `wanted` holds out of the line.
    pub(super) fn extract(&self, wanted: impl Fn(&T) -> bool) -> Vec<T> {
        let mut state = self.lock();
        if !state.items.iter().any(&wanted) {
            return Vec::new();
        }
        let (taken, left) = std::mem::take(&mut state.items)
            .into_iter()
            .partition(wanted);
        state.items = left;
        drop(state);
        Vec::from(taken)
    }

    /// Refuses what comes from now on; what is in the queue can still be taken.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Weight> State<T> {
    fn take(&mut self, limits: TakeLimits) -> Vec<T> {
        let mut bytes = 0;
        let mut count = 0;
        for item in self.items.iter().take(limits.items) {
            bytes += item.bytes();
            if count > 0 && bytes > limits.bytes {
                break;
            }
            count += 1;
        }
        let taken = self.items.drain(..count).collect();
        if self.items.is_empty() {
            self.items.shrink_to(KEPT_CAPACITY);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    impl Weight for usize {
        fn bytes(&self) -> usize {
            *self
        }
    }

    const LIMITS: TakeLimits = TakeLimits {
        items: 3,
        bytes: 10,
    };

    #[tokio::test]
    async fn takes_what_is_there_up_to_its_limits_in_order() {
        let queue = Queue::new();
        for item in [1, 2, 3, 4, 100, 1] {
            queue.push(item).unwrap();
        }
        assert_eq!(queue.take(LIMITS).await, Some(vec![1, 2, 3]));
        assert_eq!(queue.take(LIMITS).await, Some(vec![4]));
        assert_eq!(queue.take(LIMITS).await, Some(vec![100]));
        assert_eq!(queue.take(LIMITS).await, Some(vec![1]));
    }

    #[tokio::test]
    async fn what_is_left_at_the_close_is_still_taken() {
        let queue = Queue::new();
        queue.push(1).unwrap();
        queue.close();
        assert_eq!(queue.push(2), Err(2));
        assert_eq!(queue.take(LIMITS).await, Some(vec![1]));
        assert_eq!(queue.take(LIMITS).await, None);
    }

    #[tokio::test]
    async fn a_waiting_taker_is_woken() {
        let queue = Arc::new(Queue::new());
        let (taken, ()) = tokio::join!(queue.take(LIMITS), async {
            tokio::task::yield_now().await;
            queue.push(7).unwrap();
        });
        assert_eq!(taken, Some(vec![7]));
    }

    #[tokio::test]
    async fn extracting_keeps_the_order_of_the_rest() {
        let queue = Queue::new();
        for item in 1..=5 {
            queue.push(item).unwrap();
        }
        assert_eq!(queue.extract(|item| item % 2 == 0), [2, 4]);
        assert_eq!(queue.take(LIMITS).await, Some(vec![1, 3, 5]));
    }
}
