// The step's table, written by the host ahead of each submit: a header, then the rows, then three words of four per
// sample. Layout in shaders/step_table.py.

const FROM_DEVICE: u32 = 0xffffffffu;
const PAGE: u32 = 16u;

fn num_rows() -> u32 {
    return step[0].x;
}

fn num_samples() -> u32 {
    return step[0].y;
}

fn sample_word(sample: u32, word: u32) -> vec4u {
    return step[step[0].z + 3u * sample + word];
}

// Row of the step whose logits sample `sample` draws from.
fn sample_row(sample: u32) -> u32 {
    return sample_word(sample, 0u).x;
}

// (token or FROM_DEVICE, position, slot, unused)
fn row_of(row: u32) -> vec4u {
    return step[1u + row];
}
