//! Programs of eBPF with labels (Documentation/bpf/standardization/instruction-set.rst).

/// An instruction, as `bpf(2)` takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Instruction {
    code: u8,
    /// Destination in the lower half, source in the upper.
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// A register. The last is the frame pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Register(pub(super) u8);

pub(super) const R0: Register = Register(0);
pub(super) const R1: Register = Register(1);
pub(super) const R2: Register = Register(2);
pub(super) const R3: Register = Register(3);
pub(super) const R4: Register = Register(4);
pub(super) const R5: Register = Register(5);
pub(super) const R6: Register = Register(6);
pub(super) const R7: Register = Register(7);
pub(super) const R8: Register = Register(8);
pub(super) const R9: Register = Register(9);
pub(super) const FRAME: Register = Register(10);

/// Width of a load.
#[derive(Clone, Copy, Debug)]
pub(super) enum Width {
    Byte = 0x10,
    Half = 0x08,
    Word = 0x00,
    Double = 0x18,
}

/// Operations on the lower half of a register; the upper becomes zero.
#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    Or = 0x40,
    And = 0x50,
    Lsh = 0x60,
    Rsh = 0x70,
    Xor = 0xa0,
    Add = 0x00,
}

/// Operations on whole registers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Op64 {
    Add = 0x00,
    Or = 0x40,
    Lsh = 0x60,
    Rsh = 0x70,
    Xor = 0xa0,
}

/// Target of a jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label(usize);

/// A program being assembled.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    code: Vec<Instruction>,
    /// Positions of the labels.
    labels: Vec<Option<usize>>,
    /// Positions of the jumps, and their labels.
    jumps: Vec<(usize, Label)>,
}

const SOURCE_IS_REGISTER: u8 = 0x08;
/// Comparisons of the lower halves of registers.
const JUMP_32: u8 = 0x06;
const JUMP: u8 = 0x05;
const EQUAL: u8 = 0x10;
const NOT_EQUAL: u8 = 0x50;
const ABOVE: u8 = 0x20;
const BELOW: u8 = 0xa0;
const LESS_SIGNED: u8 = 0xc0;

impl Assembler {
    fn push(&mut self, code: u8, to: Register, from: Register, offset: i16, immediate: i32) {
        self.code.push(Instruction {
            code,
            registers: to.0 | from.0 << 4,
            offset,
            immediate,
        });
    }

    /// Returns a label, to be placed once.
    pub(super) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Places the label at the next instruction.
    pub(super) fn place(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    /// True if a jump leads to the label.
    pub(super) fn is_used(&self, label: Label) -> bool {
        self.jumps.iter().any(|(_, to)| *to == label)
    }

    /// `to = from`, all 64 bits.
    pub(super) fn copy(&mut self, to: Register, from: Register) {
        self.push(0xbf, to, from, 0, 0);
    }

    /// `to = value`, the upper half zero.
    pub(super) fn set(&mut self, to: Register, value: u32) {
        self.push(0xb4, to, R0, 0, value as i32);
    }

    /// `to = from`, the lower half, the upper zero.
    pub(super) fn copy_word(&mut self, to: Register, from: Register) {
        self.push(0xbc, to, from, 0, 0);
    }

    /// `to += value`, of pointers.
    pub(super) fn move_by(&mut self, to: Register, value: i32) {
        self.push(0x07, to, R0, 0, value);
    }

    /// `to += from`, of pointers.
    pub(super) fn move_by_register(&mut self, to: Register, from: Register) {
        self.push(0x0f, to, from, 0, 0);
    }

    /// `to = *(from + offset)`.
    pub(super) fn load(&mut self, width: Width, to: Register, from: Register, offset: i16) {
        self.push(0x61 | width as u8, to, from, offset, 0);
    }

    /// `*(to + offset) = from`, a word.
    pub(super) fn store(&mut self, to: Register, offset: i16, from: Register) {
        self.push(0x63, to, from, offset, 0);
    }

    /// `to = to op value`.
    pub(super) fn with(&mut self, op: Op, to: Register, value: u32) {
        self.push(0x04 | op as u8, to, R0, 0, value as i32);
    }

    /// `to = to op from`.
    pub(super) fn with_register(&mut self, op: Op, to: Register, from: Register) {
        self.push(0x04 | SOURCE_IS_REGISTER | op as u8, to, from, 0, 0);
    }

    /// `to = value`, all 64 bits.
    pub(super) fn set_double(&mut self, to: Register, value: u64) {
        self.push(0x18, to, R0, 0, value as i32);
        self.push(0, R0, R0, 0, (value >> 32) as i32);
    }

    /// `to = to op value`, of whole registers.
    pub(super) fn with_64(&mut self, op: Op64, to: Register, value: i32) {
        self.push(0x07 | op as u8, to, R0, 0, value);
    }

    /// `to = to op from`, of whole registers.
    pub(super) fn with_register_64(&mut self, op: Op64, to: Register, from: Register) {
        self.push(0x07 | SOURCE_IS_REGISTER | op as u8, to, from, 0, 0);
    }

    /// `register = register <<< bits`, all 64 bits; `scratch` changes.
    pub(super) fn rotate_left(&mut self, register: Register, bits: i32, scratch: Register) {
        self.copy(scratch, register);
        self.with_64(Op64::Lsh, register, bits);
        self.with_64(Op64::Rsh, scratch, 64 - bits);
        self.with_register_64(Op64::Or, register, scratch);
    }

    /// Converts 16 bits loaded from a packet to this machine's byte order.
    pub(super) fn in_host_order(&mut self, of: Register) {
        self.push(0xdc, of, R0, 0, 16);
    }

    /// `to` = the map with this descriptor.
    pub(super) fn load_map(&mut self, to: Register, map: i32) {
        const PSEUDO_MAP_FD: Register = Register(1);
        self.push(0x18, to, PSEUDO_MAP_FD, 0, map);
        self.push(0, R0, R0, 0, 0);
    }

    /// Calls one of the kernel's helpers.
    pub(super) fn call(&mut self, helper: i32) {
        self.push(0x85, R0, R0, 0, helper);
    }

    /// Ends the program with `R0` as its result.
    pub(super) fn exit(&mut self) {
        self.push(0x95, R0, R0, 0, 0);
    }

    fn jump_to(&mut self, label: Label, code: u8, to: Register, from: Register, immediate: i32) {
        self.jumps.push((self.code.len(), label));
        self.push(code, to, from, 0, immediate);
    }

    /// Jumps to the label.
    pub(super) fn jump(&mut self, label: Label) {
        self.jump_to(label, JUMP, R0, R0, 0);
    }

    /// Jumps if the lower half of a register equals `value`.
    pub(super) fn jump_if(&mut self, register: Register, value: u32, label: Label) {
        self.jump_to(label, JUMP_32 | EQUAL, register, R0, value as i32);
    }

    /// Jumps if the lower half of a register differs from `value`.
    pub(super) fn jump_unless(&mut self, register: Register, value: u32, label: Label) {
        self.jump_to(label, JUMP_32 | NOT_EQUAL, register, R0, value as i32);
    }

    /// Jumps if the lower half of a register is above `value`, both without sign.
    pub(super) fn jump_if_above(&mut self, register: Register, value: u32, label: Label) {
        self.jump_to(label, JUMP_32 | ABOVE, register, R0, value as i32);
    }

    /// Jumps if the lower half of a register is below `value`, both without sign.
    pub(super) fn jump_if_below(&mut self, register: Register, value: u32, label: Label) {
        self.jump_to(label, JUMP_32 | BELOW, register, R0, value as i32);
    }

    /// Jumps if a pointer is null.
    pub(super) fn jump_if_null(&mut self, register: Register, label: Label) {
        self.jump_to(label, JUMP | EQUAL, register, R0, 0);
    }

    /// Jumps if a helper has failed.
    pub(super) fn jump_if_negative(&mut self, register: Register, label: Label) {
        self.jump_to(label, JUMP | LESS_SIGNED, register, R0, 0);
    }

    /// Returns the program.
    ///
    /// # Panics
    /// If a label was not placed.
    pub(super) fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in self.jumps {
            let to = self.labels[label.0].expect("the label was placed");
            let distance = to as i64 - at as i64 - 1;
            self.code[at].offset = i16::try_from(distance).expect("programs are short");
        }
        self.code
    }
}
