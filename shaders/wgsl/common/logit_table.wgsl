// What a step's samples ask of their logits, written by the host ahead of each submit. Layout in
// shaders/logit_table.py. Needs the binding `logit_table` (array<u32>).

struct Wish {
    first_bias: u32,
    num_biases: u32,
    first_mask: u32,  // 0: no bitmask
    counts: u32,      // 1: penalties apply, and the drawn token is counted
    repetition: f32,
    frequency: f32,
    presence: f32,
    logprobs: u32,    // 0: none wanted, else 1 + how many of the likeliest
}

fn wish_of(sample: u32) -> Wish {
    let at = 8u * sample;
    return Wish(
        logit_table[at],
        logit_table[at + 1u],
        logit_table[at + 2u],
        logit_table[at + 3u],
        bitcast<f32>(logit_table[at + 4u]),
        bitcast<f32>(logit_table[at + 5u]),
        bitcast<f32>(logit_table[at + 6u]),
        logit_table[at + 7u],
    );
}
