// count_drawn: counts each drawn token in its slot's row, where the sample asks for penalties
// grid      (1, 1, 1)
// binding   step         read        header, rows and samples of the step
// binding   vocab        uniform     vocab_size and quads per row
// binding   logit_table  read        what each sample asks for
// binding   tokens       read        [samples] what was drawn
// binding   counts       read_write  [slots][4 * quads_per_row], occurrences in the answer; bit 31: in the prompt

@group(0) @binding(0) var<storage, read> step: array<vec4u>;
@group(0) @binding(1) var<uniform> vocab: Vocab;
@group(0) @binding(2) var<storage, read> logit_table: array<u32>;
@group(0) @binding(3) var<storage, read> tokens: array<u32>;
@group(0) @binding(4) var<storage, read_write> counts: array<u32>;

//!include "common/step.wgsl"
//!include "common/logit_table.wgsl"

struct Vocab {
    vocab_size: u32,
    quads_per_row: u32,
}

@compute @workgroup_size(64, 1, 1)
fn main(@builtin(local_invocation_index) local: u32) {
    for (var sample = local; sample < num_samples(); sample += 64u) {
        if (wish_of(sample).counts > 0u) {
            counts[4u * sample_word(sample, 0u).y * vocab.quads_per_row + tokens[sample]] += 1u;
        }
    }
}
