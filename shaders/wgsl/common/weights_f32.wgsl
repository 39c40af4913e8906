// F32: 64 words per row and 64 elements. No scales.

//!include "common/floats.wgsl"

const UNITS: u32 = 8u;

fn octet_at(at: u32, w: u32) -> Octet {
    let bytes = weights[at + w];
    return Octet(bitcast<vec4f>(low_of(bytes)), bitcast<vec4f>(high_of(bytes)));
}
