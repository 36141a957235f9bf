//! NUMA: the CPUs near the memory that a range will get, and the nodes of pages.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{c_int, c_ulong};
use linux_raw_sys::mempolicy::_bindgen_ty_1 as Mode;
use linux_raw_sys::mempolicy::{
    MPOL_DEFAULT, MPOL_F_ADDR, MPOL_F_RELATIVE_NODES, MPOL_LOCAL, MPOL_MODE_FLAGS,
};
use rustix::io::Errno;
use rustix::thread::{self, CpuSet};

use super::{last_errno, page_size};
use crate::PageRange;

const NODES: &str = "/sys/devices/system/node";

/// Returns the CPUs of the nodes that the memory policy names for the range, as
/// far as this thread may run there. The policy at the range's first address
/// decides.
///
/// `None` where the choice makes no difference or the policy is unknown: there
/// is one node, the policy names no node, `get_mempolicy(2)` is denied, or the
/// nodes have no such CPU.
pub(crate) fn cpus_for(range: PageRange) -> Option<CpuSet> {
    let folder = Path::new(NODES);
    if !has_several_nodes(folder) {
        return None;
    }
    let nodes = policy_nodes(range.start())?;
    cpus_of(folder, &nodes, &thread::sched_getaffinity(None).ok()?)
}

/// Restricts the calling thread to these CPUs: `sched_setaffinity(2)`. If the
/// kernel refuses, the thread stays where it is, with its memory farther away.
pub(crate) fn run_on(cpus: &CpuSet) {
    let _ = thread::sched_setaffinity(None, cpus);
}

/// Keeps the calling thread on the nodes that policies name for the memory that it works on.
/// Dropping it gives the thread its CPUs back.
pub(crate) struct NearMemory {
    /// The nodes of that memory, where its policy names any.
    nodes: Option<Vec<usize>>,
    /// The thread's CPUs before it has moved, and after.
    moved: Option<(CpuSet, CpuSet)>,
}

impl NearMemory {
    pub(crate) const fn new() -> Self {
        Self {
            nodes: None,
            moved: None,
        }
    }

    /// Moves the thread near the range, as [`cpus_for`] has it, among the CPUs that it had
    /// before. Does nothing unless [`look_up_nodes`] has found several nodes.
    pub(crate) fn follow(&mut self, range: PageRange) {
        if !HAS_SEVERAL_NODES.load(Ordering::Relaxed) {
            return;
        }
        let nodes = policy_nodes(range.start());
        if nodes == self.nodes {
            return;
        }
        self.leave();
        let affinity = || thread::sched_getaffinity(None).ok();
        if let (Some(nodes), Some(before)) = (&nodes, affinity())
            && let Some(cpus) = cpus_of(Path::new(NODES), nodes, &before)
        {
            run_on(&cpus);
            self.moved = affinity().map(|after| (before, after));
        }
        self.nodes = nodes;
    }

    fn leave(&mut self) {
        // CPUs that someone else has given the thread meanwhile stay.
        if let Some((before, after)) = self.moved.take()
            && thread::sched_getaffinity(None) == Ok(after)
        {
            run_on(&before);
        }
    }
}

impl Drop for NearMemory {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Returns whether new pages come from where the kernel takes them by default: neither the
/// memory at the address nor, without an address, this thread has a policy of its own. True
/// where the kernel does not tell (no NUMA, or a container that denies the calls).
pub(crate) fn is_default_policy(addr: Option<usize>) -> bool {
    policy(addr).map_or_else(
        |errno| errno != Errno::FAULT,
        |policy| policy.is(MPOL_DEFAULT) || policy.is(MPOL_LOCAL),
    )
}

/// Whether [`look_up_nodes`] has found several nodes.
static HAS_SEVERAL_NODES: AtomicBool = AtomicBool::new(false);

/// Looks up whether there are several nodes, for [`own_node`], [`node_of`] and [`NearMemory`].
pub(crate) fn look_up_nodes() {
    HAS_SEVERAL_NODES.store(has_several_nodes(Path::new(NODES)), Ordering::Relaxed);
}

/// Returns the node of the CPU that the calling thread runs on, if there are several:
/// `getcpu(2)`.
pub(crate) fn own_node() -> Option<u16> {
    HAS_SEVERAL_NODES
        .load(Ordering::Relaxed)
        .then(current_node)?
}

/// Returns the node of the page at the address, if there are several and the page is there:
/// `move_pages(2)`, which moves nothing here, and which some containers deny.
pub(crate) fn node_of(addr: usize) -> Option<u16> {
    HAS_SEVERAL_NODES
        .load(Ordering::Relaxed)
        .then(|| node_of_page(addr))?
}

fn current_node() -> Option<u16> {
    let mut node = 0_u32;
    let nowhere = std::ptr::null_mut::<u32>();
    // SAFETY: the kernel writes one integer to `node`, and nothing to null pointers.
    let answer = unsafe { libc::syscall(libc::SYS_getcpu, nowhere, &raw mut node, nowhere) };
    (answer == 0).then_some(node)?.try_into().ok()
}

fn node_of_page(addr: usize) -> Option<u16> {
    let page = (addr - addr % page_size()) as *const u8;
    let mut status: c_int = -1;
    // SAFETY: the kernel reads one address and writes one integer; without a list of nodes it
    // moves nothing.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            1_usize,
            &raw const page,
            std::ptr::null::<c_int>(),
            &raw mut status,
            0,
        )
    };
    (answer == 0).then_some(status)?.try_into().ok()
}

fn has_several_nodes(folder: &Path) -> bool {
    let online = fs::read_to_string(folder.join("online")).unwrap_or_default();
    parse_list(&online).nth(1).is_some()
}

/// Returns the CPUs of the nodes that are also `allowed`, if any.
fn cpus_of(folder: &Path, nodes: &[usize], allowed: &CpuSet) -> Option<CpuSet> {
    let mut cpus = CpuSet::new();
    for node in nodes {
        let path = folder.join(format!("node{node}/cpulist"));
        let list = fs::read_to_string(path).unwrap_or_default();
        for cpu in parse_list(&list).take_while(|&cpu| cpu < CpuSet::MAX_CPU) {
            if allowed.is_set(cpu) {
                cpus.set(cpu);
            }
        }
    }
    (cpus.count() > 0).then_some(cpus)
}

/// Parses a kernel list such as `0-3,8`, in ascending order. Stops at the first
/// part that does not parse.
pub(super) fn parse_list(text: &str) -> impl Iterator<Item = usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..=last.parse().ok()?)
    };
    text.trim().split(',').map_while(range).flatten()
}

/// Returns the nodes that the policy for the address names. Like the kernel, it
/// uses the thread's own policy where the memory has none.
fn policy_nodes(addr: usize) -> Option<Vec<usize>> {
    let of_memory = policy(Some(addr)).ok()?;
    if of_memory.is(MPOL_DEFAULT) {
        return policy(None).ok()?.nodes();
    }
    of_memory.nodes()
}

/// The answer of `get_mempolicy(2)`.
struct Policy {
    mode: u32,
    flags: u32,
    mask: Mask,
}

/// A bit for each of 1024 nodes, the maximum that a kernel can be built for.
type Mask = [c_ulong; MASK_WORDS];

const MASK_BITS: usize = 1024;
const MASK_WORDS: usize = MASK_BITS / c_ulong::BITS as usize;

impl Policy {
    /// Returns the nodes that the policy names, if any. Every mode but the
    /// local ones allocates from the nodes in its mask, and from others only
    /// when it must.
    fn nodes(&self) -> Option<Vec<usize>> {
        // Relative numbers do not identify nodes by themselves.
        if self.is(MPOL_DEFAULT) || self.is(MPOL_LOCAL) || self.flags & MPOL_F_RELATIVE_NODES != 0 {
            return None;
        }
        let word_bits = c_ulong::BITS as usize;
        let is_named = |node: &usize| self.mask[node / word_bits] >> (node % word_bits) & 1 == 1;
        let nodes: Vec<_> = (0..MASK_BITS).filter(is_named).collect();
        // Kernels before 5.14 report "local" as "preferred" without a node.
        (!nodes.is_empty()).then_some(nodes)
    }

    fn is(&self, mode: Mode) -> bool {
        self.mode == mode as u32
    }
}

/// Reads the policy of the memory at an address, or of this thread: EFAULT
/// where nothing is mapped, EPERM in many containers.
fn policy(addr: Option<usize>) -> Result<Policy, Errno> {
    let mut mode: c_int = 0;
    let mut mask: Mask = [0; MASK_WORDS];
    let flags = addr.map_or(0, |_| c_ulong::from(MPOL_F_ADDR));
    // SAFETY: the kernel writes one int to `mode`, and to `mask` as many bits
    // as `MASK_BITS` says, which is its size; it only looks `addr` up.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut mode,
            mask.as_mut_ptr(),
            MASK_BITS as c_ulong,
            addr.unwrap_or(0) as c_ulong,
            flags,
        )
    };
    if answer != 0 {
        return Err(last_errno());
    }
    let mode = mode as u32;
    Ok(Policy {
        mode: mode & !MPOL_MODE_FLAGS,
        flags: mode & MPOL_MODE_FLAGS,
        mask,
    })
}

#[cfg(test)]
mod tests {
    use linux_raw_sys::mempolicy::{
        MPOL_BIND, MPOL_F_STATIC_NODES, MPOL_INTERLEAVE, MPOL_PREFERRED,
    };

    use super::*;
    use crate::Mapping;

    fn list(text: &str) -> Vec<usize> {
        parse_list(text).collect()
    }

    fn set(cpus: &[usize]) -> CpuSet {
        let mut set = CpuSet::new();
        for &cpu in cpus {
            set.set(cpu);
        }
        set
    }

    #[test]
    fn parse_list_reads_kernel_lists() {
        assert_eq!(list("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(list("7\n"), [7]);
        assert_eq!(list("\n"), []);
        assert_eq!(list(""), []);
        assert_eq!(list("1,x,3"), [1]);
    }

    #[test]
    fn cpus_of_returns_allowed_cpus_of_named_nodes() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert!(!has_several_nodes(folder.path()));
        write("online", "0\n");
        assert!(!has_several_nodes(folder.path()));
        write("online", "0-2\n");
        assert!(has_several_nodes(folder.path()));
        write("online", "0,2\n");
        assert!(has_several_nodes(folder.path()));
        write("node0/cpulist", "0-1,4-5\n");
        write("node1/cpulist", "2-3,6-7,1020-1030\n");
        // A node with memory and no CPUs.
        write("node2/cpulist", "\n");

        let all = set(&(0..CpuSet::MAX_CPU).collect::<Vec<_>>());
        let cpus = |nodes: &[usize], allowed| cpus_of(folder.path(), nodes, &allowed);
        assert_eq!(cpus(&[0], all), Some(set(&[0, 1, 4, 5])));
        assert_eq!(cpus(&[0, 2], all), Some(set(&[0, 1, 4, 5])));
        assert_eq!(cpus(&[0, 1], set(&[1, 2, 9])), Some(set(&[1, 2])));
        assert_eq!(cpus(&[1], set(&[1020, 1023])), Some(set(&[1020, 1023])));
        assert_eq!(cpus(&[0], set(&[2, 3])), None);
        assert_eq!(cpus(&[2], all), None);
        assert_eq!(cpus(&[3], all), None);
    }

    #[test]
    fn nodes_of_thread_and_page_are_online() {
        let online = fs::read_to_string(Path::new(NODES).join("online"));
        let online = list(&online.unwrap_or_else(|_| "0".into()));
        let memory = Mapping::anonymous(page_size()).map().unwrap();
        assert_eq!(
            node_of_page(memory.range().start()),
            None,
            "no page is there"
        );
        memory.populate(.., crate::Access::Write).unwrap();
        // A container or a kernel without NUMA may refuse either.
        for node in [current_node(), node_of_page(memory.range().start())] {
            assert!(node.is_none_or(|node| online.contains(&usize::from(node))));
        }
    }

    #[test]
    fn policy_nodes_depend_on_mode() {
        let nodes = |mode, flags, words: &[c_ulong]| {
            let mut mask: Mask = [0; MASK_WORDS];
            mask[..words.len()].copy_from_slice(words);
            Policy { mode, flags, mask }.nodes()
        };
        let (preferred, bind) = (MPOL_PREFERRED as u32, MPOL_BIND as u32);
        assert_eq!(nodes(bind, 0, &[0b101]), Some(vec![0, 2]));
        assert_eq!(nodes(bind, MPOL_F_STATIC_NODES, &[0b10]), Some(vec![1]));
        assert_eq!(nodes(bind, MPOL_F_RELATIVE_NODES, &[0b10]), None);
        let second = [0, 1 << 3];
        let node = c_ulong::BITS as usize + 3;
        assert_eq!(nodes(MPOL_INTERLEAVE as u32, 0, &second), Some(vec![node]));
        assert_eq!(nodes(preferred, 0, &[1]), Some(vec![0]));
        assert_eq!(nodes(preferred, 0, &[]), None);
        assert_eq!(nodes(MPOL_LOCAL as u32, 0, &[1]), None);
        assert_eq!(nodes(MPOL_DEFAULT as u32, 0, &[1]), None);
    }

    /// A mask of node 0, which every kernel with NUMA has.
    const NODE_0: Mask = {
        let mut mask: Mask = [0; MASK_WORDS];
        mask[0] = 1;
        mask
    };

    /// Returns whether the policy calls work: a kernel without NUMA lacks them,
    /// and containers may deny them.
    fn policies_can_be_set() -> bool {
        let answer = policy(None);
        if let Err(errno) = &answer {
            assert!([Errno::NOSYS, Errno::PERM].contains(errno), "{errno}");
        }
        answer.is_ok()
    }

    fn bind_to_node_0(range: PageRange) {
        // SAFETY: the call sets where pages of this mapping come from, and
        // reads the mask, which has `MASK_BITS` bits.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                range.start() as c_ulong,
                range.len() as c_ulong,
                MPOL_BIND as c_ulong,
                NODE_0.as_ptr(),
                MASK_BITS as c_ulong,
                0 as c_ulong,
            )
        };
        assert_eq!(answer, 0, "mbind: {}", last_errno());
    }

    #[test]
    fn policy_of_memory_names_its_nodes() {
        let memory = Mapping::anonymous(1 << 20).map().unwrap();
        let range = memory.range();
        if !policies_can_be_set() {
            assert_eq!(policy_nodes(range.start()), None);
            return;
        }
        assert_eq!(policy_nodes(range.start()), None);
        bind_to_node_0(range);
        assert_eq!(policy_nodes(range.start()), Some(vec![0]));
        drop(memory);
        assert_eq!(policy(Some(0)).err(), Some(Errno::FAULT));
        assert_eq!(policy_nodes(0), None);
    }

    #[test]
    fn policy_of_memory_without_policy_is_that_of_thread() {
        if !policies_can_be_set() {
            return;
        }
        let memory = Mapping::anonymous(1 << 20).map().unwrap();
        let start = memory.range().start();
        let set_and_ask = || {
            // SAFETY: the call affects the calling thread alone, and reads the
            // mask, which has `MASK_BITS` bits.
            let answer = unsafe {
                libc::syscall(
                    libc::SYS_set_mempolicy,
                    MPOL_BIND as c_ulong,
                    NODE_0.as_ptr(),
                    MASK_BITS as c_ulong,
                )
            };
            assert_eq!(answer, 0, "set_mempolicy: {}", last_errno());
            policy_nodes(start)
        };
        // A separate thread, because the policy stays with it.
        let nodes = std::thread::scope(|scope| scope.spawn(set_and_ask).join());
        assert_eq!(nodes.unwrap(), Some(vec![0]));
        assert_eq!(policy_nodes(start), None);
    }

    #[test]
    fn cpus_for_on_one_node_is_none() {
        let memory = Mapping::anonymous(1 << 20).map().unwrap();
        if !has_several_nodes(Path::new(NODES)) {
            assert_eq!(cpus_for(memory.range()), None);
        }
    }

    #[test]
    fn cpus_for_bound_memory_on_several_nodes_are_those_of_its_node() {
        if !has_several_nodes(Path::new(NODES)) || !policies_can_be_set() {
            return;
        }
        let memory = Mapping::anonymous(1 << 20).map().unwrap();
        assert_eq!(cpus_for(memory.range()), None);
        bind_to_node_0(memory.range());
        let allowed = thread::sched_getaffinity(None).unwrap();
        let expected = cpus_of(Path::new(NODES), &[0], &allowed);
        assert_eq!(cpus_for(memory.range()), expected);
    }

    #[test]
    fn thread_follows_bound_memory_and_goes_back() {
        look_up_nodes();
        let run = || {
            let before = thread::sched_getaffinity(None).unwrap();
            let [bound, other] = [(); 2].map(|()| Mapping::anonymous(1 << 20).map().unwrap());
            let expected = match policies_can_be_set() {
                true => {
                    bind_to_node_0(bound.range());
                    cpus_for(bound.range())
                }
                false => None,
            };
            let mut near = NearMemory::new();
            for _ in 0..2 {
                near.follow(bound.range());
                let now = thread::sched_getaffinity(None).unwrap();
                assert_eq!(now, expected.unwrap_or(before));
                near.follow(other.range());
                assert_eq!(thread::sched_getaffinity(None).unwrap(), before);
            }
            near.follow(bound.range());
            drop(near);
            assert_eq!(thread::sched_getaffinity(None).unwrap(), before);

            // CPUs that the program gives the thread meanwhile stay.
            let last = (0..CpuSet::MAX_CPU).rfind(|&cpu| before.is_set(cpu));
            let last = set(&[last.unwrap()]);
            let mut near = NearMemory::new();
            near.follow(bound.range());
            run_on(&last);
            drop(near);
            assert_eq!(thread::sched_getaffinity(None).unwrap(), last);
        };
        std::thread::spawn(run).join().unwrap();
    }

    #[test]
    fn run_on_restricts_thread_or_leaves_it() {
        let run = || {
            let before = thread::sched_getaffinity(None).unwrap();
            let first = (0..CpuSet::MAX_CPU).find(|&cpu| before.is_set(cpu));
            let first = set(&[first.unwrap()]);
            run_on(&first);
            assert_eq!(thread::sched_getaffinity(None).unwrap(), first);
            // No CPU at all: EINVAL.
            run_on(&CpuSet::new());
            assert_eq!(thread::sched_getaffinity(None).unwrap(), first);
        };
        std::thread::scope(|scope| scope.spawn(run).join()).unwrap();
    }
}
