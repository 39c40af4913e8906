// embed: x[r,:] = row of the embedding for token r
// grid      (rows of the step, 1, 1), one workgroup per row
// binding   step         read        header and rows of the step
// binding   last_tokens  read        [slots] the token last sampled for each slot
// binding   shape        uniform     sizes and strides; `rows` and `first_tile` bound this window of the vocabulary
// binding   weights      read        packed embedding
// binding   scales       read        packed scales
// binding   x            read_write  [tokens, hidden] f32
// slot      words    how 32 bytes are loaded
// slot      weights  the block type

@group(0) @binding(0) var<storage, read> step: array<vec4u>;
@group(0) @binding(1) var<storage, read> last_tokens: array<u32>;
@group(0) @binding(2) var<uniform> shape: Shape;
@group(0) @binding(3) var<storage, read> weights: array<Word8>;
@group(0) @binding(4) var<storage, read> scales: array<ScaleWord>;
@group(0) @binding(5) var<storage, read_write> x: array<vec4f>;

//!include "common/cluster.wgsl"
//!include "common/step.wgsl"
//!include <words>
//!include <weights>

@compute @workgroup_size(64, 1, 1)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) local: u32) {
    let row = row_of(group.x);
    let token = select(row.x, last_tokens[row.z], row.x == FROM_DEVICE) - 32u * shape.first_tile;
    if (token >= shape.rows) {  // unsigned: tokens below this window wrap around
        return;
    }
    for (var o = local; o < 8u * shape.k_blocks; o += 64u) {
        let e = octet(token, o / 8u, o % 8u);
        let at = group.x * shape.x_stride + 2u * o;
        x[at] = e.low;
        x[at + 1u] = e.high;
    }
}
