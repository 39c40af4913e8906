// repack: rows of a matrix as they lie in the file, into the packed layout [rows/8][K/64][8 rows][words]
// grid      (ceil(rows * K/64 / 64), 1, 1), one slice of 64 elements of one row per thread
// binding   window   uniform     which rows these are and where they go
// binding   raw      read        the rows' bytes
// binding   weights  read_write  packed words
// binding   scales   read_write  packed scale words; untouched where the type has none
// slot      raw_type  the block type as it lies in the file

struct Window {
    rows: u32,
    row_bytes: u32,
    row_elements: u32,
    k_blocks: u32,
    first_group: u32,  // group of 8 rows that the first row goes to
    group_step: u32,   // 2 where another matrix's groups lie between
    pad0: u32,
    pad1: u32,
}

@group(0) @binding(0) var<uniform> window: Window;
@group(0) @binding(1) var<storage, read> raw: array<u32>;
@group(0) @binding(2) var<storage, read_write> weights: array<u32>;
@group(0) @binding(3) var<storage, read_write> scales: array<u32>;

// Four bytes at an even offset; blocks of 18 and 34 bytes begin between words.
fn raw_word(offset: u32) -> u32 {
    let low = raw[offset / 4u];
    if (offset % 4u == 0u) {
        return low;
    }
    return (low >> 16u) | (raw[offset / 4u + 1u] << 16u);
}

//!include <raw_type>

@compute @workgroup_size(64, 1, 1)
fn main(@builtin(global_invocation_id) id: vec3u) {
    let row = id.x / window.k_blocks;
    let b = id.x % window.k_blocks;
    if (row < window.rows) {
        let group = window.first_group + row / 8u * window.group_step;
        repack_slice(row, b, (group * window.k_blocks + b) * 8u + row % 8u);
    }
}
