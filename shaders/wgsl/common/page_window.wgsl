// Where the bytes of whole pages lie, in vec4u: in the buffer that holds some of their parts, and packed as
// [place in moved][part][vectors]. A part is what one buffer of a layer holds: [pages][vectors].

struct PageWindow {
    vectors: u32,      // of one page in one part
    part_stride: u32,  // from one part to the next in this window's buffer
    first_part: u32,   // of this window, among all parts of a page
    num_parts: u32,    // of a page, in all windows together
}

fn page_index(page: u32, part: u32, vector: u32) -> u32 {
    return part * window.part_stride + page * window.vectors + vector;
}

fn packed_index(place: u32, part: u32, vector: u32) -> u32 {
    return (place * window.num_parts + window.first_part + part) * window.vectors + vector;
}
