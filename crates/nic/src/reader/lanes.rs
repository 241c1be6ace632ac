//! Tasks for threads, in a lane for each mount: a mount that hangs delays its own tasks and no
//! others.

use std::collections::{HashMap, VecDeque};

/// Waiting tasks, by the id of their mount.
#[derive(Debug)]
pub(super) struct Lanes<T> {
    lanes: HashMap<u64, Lane<T>>,
    /// Lanes with a startable task, in turn.
    ready: VecDeque<u64>,
    /// Most threads in one lane.
    threads_max: usize,
}

#[derive(Debug)]
struct Lane<T> {
    tasks: VecDeque<T>,
    /// Tasks carried out one at a time, so that threads are left for the others.
    single: VecDeque<T>,
    single_runs: bool,
    running: usize,
    is_ready: bool,
}

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Lane {
            tasks: VecDeque::new(),
            single: VecDeque::new(),
            single_runs: false,
            running: 0,
            is_ready: false,
        }
    }
}

impl<T> Lane<T> {
    fn len(&self) -> usize {
        self.tasks.len() + self.single.len()
    }

    /// Returns the number of tasks that may start now.
    fn startable(&self, threads_max: usize) -> usize {
        let has_single = !self.single_runs && !self.single.is_empty();
        let waiting = self.tasks.len() + usize::from(has_single);
        waiting.min(threads_max.saturating_sub(self.running))
    }
}

/// Identifies a task taken by a thread, for [`Lanes::done`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    mount: u64,
    is_single: bool,
}

impl<T> Lanes<T> {
    pub(super) fn new(threads_max: usize) -> Lanes<T> {
        Lanes {
            lanes: HashMap::new(),
            ready: VecDeque::new(),
            threads_max: threads_max.max(1),
        }
    }

    pub(super) fn push(&mut self, mount: u64, task: T) {
        self.lanes.entry(mount).or_default().tasks.push_back(task);
        self.look_at(mount);
    }

    /// Adds a task that is not carried out beside another one of this kind.
    pub(super) fn push_single(&mut self, mount: u64, task: T) {
        self.lanes.entry(mount).or_default().single.push_back(task);
        self.look_at(mount);
    }

    /// Returns the number of tasks waiting in the lane of a mount.
    pub(super) fn waiting(&self, mount: u64) -> usize {
        self.lanes.get(&mount).map_or(0, Lane::len)
    }

    /// Returns the number of tasks that may start now, each in a thread of its own.
    pub(super) fn startable(&self) -> usize {
        let ready = self.ready.iter().filter_map(|mount| self.lanes.get(mount));
        ready.map(|lane| lane.startable(self.threads_max)).sum()
    }

    /// Takes the next task to carry out.
    pub(super) fn take(&mut self) -> Option<(Taken, T)> {
        let mount = self.ready.pop_front()?;
        let lane = self.lanes.get_mut(&mount)?;
        lane.is_ready = false;
        let single = if lane.single_runs {
            None
        } else {
            lane.single.pop_front()
        };
        let is_single = single.is_some();
        let task = single.or_else(|| lane.tasks.pop_front())?;
        lane.running += 1;
        lane.single_runs |= is_single;
        self.look_at(mount);
        Some((Taken { mount, is_single }, task))
    }

    /// Records that a task has been carried out.
    pub(super) fn done(&mut self, taken: Taken) {
        if let Some(lane) = self.lanes.get_mut(&taken.mount) {
            lane.running -= 1;
            lane.single_runs &= !taken.is_single;
            if lane.running == 0 && lane.len() == 0 {
                self.lanes.remove(&taken.mount);
            }
        }
        self.look_at(taken.mount);
    }

    /// Takes all waiting tasks.
    pub(super) fn drain(&mut self) -> Vec<T> {
        self.ready.clear();
        let mut tasks = Vec::new();
        for lane in self.lanes.values_mut() {
            lane.is_ready = false;
            tasks.extend(lane.single.drain(..).chain(lane.tasks.drain(..)));
        }
        tasks
    }

    fn look_at(&mut self, mount: u64) {
        if let Some(lane) = self.lanes.get_mut(&mount)
            && !lane.is_ready
            && lane.startable(self.threads_max) > 0
        {
            lane.is_ready = true;
            self.ready.push_back(mount);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks(lanes: &mut Lanes<u32>) -> Vec<u32> {
        std::iter::from_fn(|| lanes.take().map(|(_, task)| task)).collect()
    }

    #[test]
    fn a_lane_has_so_many_threads_and_others_take_turns_with_it() {
        let mut lanes = Lanes::new(2);
        for task in 0..5 {
            lanes.push(1, task);
        }
        lanes.push(2, 10);
        assert_eq!(lanes.startable(), 3);
        assert_eq!(tasks(&mut lanes), [0, 10, 1]);
        assert_eq!(lanes.startable(), 0);
        assert_eq!((lanes.waiting(1), lanes.waiting(2)), (3, 0));
        // The first mount hangs, and new tasks of the second go on.
        lanes.push(2, 11);
        let (taken, task) = lanes.take().unwrap();
        assert_eq!(task, 11);
        lanes.done(taken);
        assert_eq!(tasks(&mut lanes), []);
    }

    #[test]
    fn of_single_tasks_a_lane_carries_out_one_at_a_time() {
        let mut lanes = Lanes::new(4);
        lanes.push_single(1, 0);
        lanes.push_single(1, 1);
        lanes.push(1, 10);
        lanes.push(1, 11);
        assert_eq!(lanes.startable(), 3);
        let (single, task) = lanes.take().unwrap();
        assert_eq!(task, 0);
        assert_eq!(tasks(&mut lanes), [10, 11]);
        lanes.done(single);
        assert_eq!(tasks(&mut lanes), [1]);
    }

    #[test]
    fn a_lane_without_tasks_is_forgotten() {
        let mut lanes = Lanes::new(4);
        for mount in 0..1000 {
            lanes.push(mount, 7);
            let (taken, _) = lanes.take().unwrap();
            lanes.done(taken);
        }
        assert!(lanes.lanes.is_empty());
    }
}
