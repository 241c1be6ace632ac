//! Chance, as these scenarios ask for it.

#[derive(Clone, Debug)]
pub(crate) struct Random(sim::random::Random);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(sim::random::Random::new(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next()
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0.within(0..bound)
    }

    pub(crate) fn permille(&mut self, chance: u64) -> bool {
        self.below(1000) < chance
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        self.0.pick(of)
    }
}
