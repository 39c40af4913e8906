// advance: turns the step's table into that of the next decode step: every row one position on, its token the one drawn
// grid      (1, 1, 1)
// binding   step  read_write  header, rows and samples of the step
//
// Where the next step is that one, the host neither fills nor uploads the table, which is a tenth of its work.

@group(0) @binding(0) var<storage, read_write> step: array<vec4u>;

//!include "common/step.wgsl"

@compute @workgroup_size(64, 1, 1)
fn main(@builtin(local_invocation_index) local: u32) {
    for (var r = local; r < num_rows(); r += 64u) {
        let row = row_of(r);
        step[1u + r] = vec4u(FROM_DEVICE, row.y + 1u, row.z, row.w);
    }
    for (var s = local; s < num_samples(); s += 64u) {
        let word = sample_word(s, 0u);
        step[step[0].z + 3u * s] = vec4u(word.x, word.y, word.z + 1u, word.w);
    }
}
