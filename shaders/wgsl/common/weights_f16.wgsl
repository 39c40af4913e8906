// F16: 32 words per row and 64 elements, two halves to a word, the even element low. No scales.

//!include "common/floats.wgsl"

const UNITS: u32 = 4u;

fn octet_at(at: u32, w: u32) -> Octet {
    let bytes = weights[at + w / 2u];
    let q = select(low_of(bytes), high_of(bytes), w % 2u == 1u);
    return Octet(
        vec4f(unpack2x16float(q.x), unpack2x16float(q.y)),
        vec4f(unpack2x16float(q.z), unpack2x16float(q.w)),
    );
}
