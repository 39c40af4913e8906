// gather_pages: packed[place] = the page moved[place], in the parts that this window's buffer holds
// grid      (ceil(vectors / 64), pages to be moved, parts of the window), one vector per thread
// binding   window  uniform     sizes, and which parts these are
// binding   moved   read        numbers of the pages
// binding   pages   read        [parts][pages][vectors], from one part to the next part_stride
// binding   packed  read_write  [pages to be moved][parts of all windows][vectors]

@group(0) @binding(0) var<uniform> window: PageWindow;
@group(0) @binding(1) var<storage, read> moved: array<u32>;
@group(0) @binding(2) var<storage, read> pages: array<vec4u>;
@group(0) @binding(3) var<storage, read_write> packed: array<vec4u>;

//!include "common/page_window.wgsl"

@compute @workgroup_size(64, 1, 1)
fn main(@builtin(global_invocation_id) id: vec3u) {
    if (id.x < window.vectors) {
        packed[packed_index(id.y, id.z, id.x)] = pages[page_index(moved[id.y], id.z, id.x)];
    }
}
