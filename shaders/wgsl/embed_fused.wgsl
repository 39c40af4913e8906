// embed_fused: x[r,:] = row of the embedding for token r, with the first norm prepared: x * gain and the sum of x^2
// grid      (rows of the step, 1, 1), one workgroup per row
// binding   step         read        header and rows of the step
// binding   last_tokens  read        [slots] the token last sampled for each slot
// binding   shape        uniform     sizes and strides; `rows` and `first_tile` bound this window of the vocabulary
// binding   weights      read        packed embedding
// binding   scales       read        packed scales
// binding   gain         read        [hidden] f32 of the first layer's norm
// binding   x            read_write  [tokens, hidden] f32
// binding   x_gain       read_write  [tokens, hidden] f32
// binding   partials     read_write  [tokens, norm_parts] vec4f, the whole sum in the first
// slot      words    how 32 bytes are loaded
// slot      weights  the block type

@group(0) @binding(0) var<storage, read> step: array<vec4u>;
@group(0) @binding(1) var<storage, read> last_tokens: array<u32>;
@group(0) @binding(2) var<uniform> shape: Shape;
@group(0) @binding(3) var<storage, read> weights: array<Word8>;
@group(0) @binding(4) var<storage, read> scales: array<ScaleWord>;
@group(0) @binding(5) var<storage, read> gain: array<vec4f>;
@group(0) @binding(6) var<storage, read_write> x: array<vec4f>;
@group(0) @binding(7) var<storage, read_write> x_gain: array<vec4f>;
@group(0) @binding(8) var<storage, read_write> partials: array<vec4f>;

//!include "common/cluster.wgsl"
//!include "common/row_sum.wgsl"
//!include "common/step.wgsl"
//!include <words>
//!include <weights>

@compute @workgroup_size(64, 1, 1)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) local: u32) {
    let row = row_of(group.x);
    let token = select(row.x, last_tokens[row.z], row.x == FROM_DEVICE) - 32u * shape.first_tile;
    let here = token < shape.rows;  // unsigned: tokens below this window wrap around
    var square = 0.0;
    if (here) {
        for (var o = local; o < 8u * shape.k_blocks; o += ROW_WG) {
            let e = octet(token, o / 8u, o % 8u);
            let at = group.x * shape.x_stride + 2u * o;
            x[at] = e.low;
            x[at + 1u] = e.high;
            x_gain[at] = e.low * gain[2u * o];
            x_gain[at + 1u] = e.high * gain[2u * o + 1u];
            square += dot(e.low, e.low) + dot(e.high, e.high);
        }
    }
    let whole = row_sum(local, square);
    if (here) {
        for (var i = local; i < shape.norm_parts; i += ROW_WG) {
            partials[group.x * shape.norm_parts + i] = vec4f(select(0.0, whole, i == 0u), 0.0, 0.0, 0.0);
        }
    }
}
