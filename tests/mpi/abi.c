/* Checks the sizes and numbers in crates/weft-ofi/src/abi.rs against libfabric's own headers: it compiles, or names the differences. */
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/providers/fi_prov.h>

#define SIZE(type, bytes) _Static_assert(sizeof(struct type) == bytes, #type)
#define IS(name, number) _Static_assert(name == number, #name)
#define AT(type, field, bytes) _Static_assert(offsetof(struct type, field) == bytes, #type "." #field)

SIZE(fi_tx_attr, 80);
SIZE(fi_rx_attr, 64);
SIZE(fi_ep_attr, 96);
SIZE(fi_domain_attr, 192);
SIZE(fi_fabric_attr, 32);
SIZE(fi_info, 120);
SIZE(fi_provider, 72);
SIZE(fid, 24);
SIZE(fi_ops, 56);
SIZE(fid_fabric, 40);
SIZE(fi_ops_fabric, 56);
SIZE(fid_domain, 40);
SIZE(fi_ops_domain, 96);
SIZE(fi_ops_mr, 32);
SIZE(fid_mr, 40);
SIZE(fi_av_attr, 48);
SIZE(fid_av, 32);
SIZE(fi_ops_av, 64);
SIZE(fid_eq, 32);
SIZE(fi_ops_eq, 48);
SIZE(fi_cq_attr, 40);
SIZE(fid_cq, 32);
SIZE(fi_ops_cq, 64);
SIZE(fi_cq_tagged_entry, 48);
SIZE(fi_cq_err_entry, 80);
SIZE(fid_cntr, 32);
SIZE(fi_ops_cntr, 64);
SIZE(fid_ep, 80);
SIZE(fi_ops_ep, 64);
SIZE(fi_ops_cm, 80);
SIZE(fi_ops_rma, 80);
SIZE(fi_ops_atomic, 112);
SIZE(fi_ops_collective, 96);
SIZE(fi_msg, 48);
SIZE(fi_msg_tagged, 64);
SIZE(fi_ops_msg, 80);
SIZE(fi_ops_tagged, 80);
SIZE(fi_rma_iov, 24);
SIZE(fi_msg_rma, 64);
SIZE(fi_ioc, 16);
SIZE(fi_rma_ioc, 24);
SIZE(fi_msg_atomic, 72);
SIZE(fi_atomic_attr, 16);

/* Fields that follow one of another size, or that end the part of a structure that is read. */
AT(fi_mr_attr, context, 40);
AT(fi_domain_attr, mr_mode, 36);
AT(fi_domain_attr, caps, 136);
AT(fi_info, addr_format, 24);
AT(fi_info, tx_attr, 72);
AT(fi_cq_err_entry, olen, 48);
AT(fi_cq_err_entry, err, 56);
AT(fi_ops_ep, cancel, 8);
AT(fid_ep, tagged, 56);
AT(fi_msg_atomic, datatype, 48);

IS(FI_MSG, 1 << 1);
IS(FI_RMA, 1 << 2);
IS(FI_TAGGED, 1 << 3);
IS(FI_ATOMIC, 1 << 4);
IS(FI_READ, 1 << 8);
IS(FI_WRITE, 1 << 9);
IS(FI_RECV, 1 << 10);
IS(FI_SEND, 1 << 11);
IS(FI_REMOTE_READ, 1 << 12);
IS(FI_REMOTE_WRITE, 1 << 13);
IS(FI_MULTI_RECV, 1 << 16);
IS(FI_REMOTE_CQ_DATA, 1 << 17);
IS(FI_PEEK, 1 << 19);
IS(FI_FENCE, 1 << 21);
IS(FI_COMPLETION, 1 << 24);
IS(FI_INJECT, 1 << 25);
IS(FI_INJECT_COMPLETE, 1 << 26);
IS(FI_TRANSMIT_COMPLETE, 1 << 27);
IS(FI_DELIVERY_COMPLETE, 1 << 28);
IS(FI_LOCAL_COMM, 1ULL << 51);
IS(FI_REMOTE_COMM, 1ULL << 52);
IS(FI_SOURCE, 1ULL << 57);
IS(FI_DIRECTED_RECV, 1ULL << 59);
IS(FI_CLAIM, 1ULL << 59);
IS(FI_DISCARD, 1ULL << 58);
IS(FI_SELECTIVE_COMPLETION, 1ULL << 59);
IS(FI_FETCH_ATOMIC, 1ULL << 58);
IS(FI_COMPARE_ATOMIC, 1ULL << 59);
IS(FI_ORDER_SAS, 1 << 8);
IS((FI_ORDER_RAR | FI_ORDER_RAW | FI_ORDER_WAR | FI_ORDER_WAW | FI_ORDER_SAS), 0x11b);
IS(FI_ORDER_RMA_RAR, 1ULL << 32);
IS(FI_ORDER_ATOMIC_WAW, 1ULL << 39);
IS(FI_MR_BASIC, 1);
IS(FI_MR_SCALABLE, 2);
IS(FI_MR_VIRT_ADDR, 1 << 4);
IS(FI_MR_PROV_KEY, 1 << 6);
IS(FI_INT32, 4);
IS(FI_UINT32, 5);
IS(FI_INT64, 6);
IS(FI_UINT64, 7);
IS(FI_FLOAT, 8);
IS(FI_DOUBLE, 9);
IS(FI_MIN, 0);
IS(FI_MAX, 1);
IS(FI_SUM, 2);
IS(FI_BOR, 6);
IS(FI_BAND, 7);
IS(FI_BXOR, 9);
IS(FI_ATOMIC_READ, 10);
IS(FI_ATOMIC_WRITE, 11);
IS(FI_CSWAP, 12);
IS(FI_MSWAP, 18);
IS(FI_EP_RDM, 3);
IS(FI_AV_MAP, 1);
IS(FI_AV_TABLE, 2);
IS(FI_PROGRESS_AUTO, 1);
IS(FI_PROGRESS_MANUAL, 2);
IS(FI_THREAD_SAFE, 1);
IS(FI_THREAD_DOMAIN, 3);
IS(FI_RM_ENABLED, 2);
IS(FI_CQ_FORMAT_TAGGED, 4);
IS(FI_WAIT_FD, 3);
IS(FI_WAIT_YIELD, 5);
IS(FI_OPT_MIN_MULTI_RECV, 0);
IS(FI_GETOPSFLAG, 2);
IS(FI_SETOPSFLAG, 3);
IS(FI_GETWAIT, 5);
IS(FI_ENABLE, 6);
IS(FI_CLASS_DOMAIN, 2);
IS(FI_CLASS_AV, 11);
IS(FI_CLASS_CQ, 14);
IS(FI_CLASS_CNTR, 15);
IS(FI_ETOOSMALL, 257);
IS(FI_EOPBADSTATE, 258);
IS(FI_EAVAIL, 259);
IS(FI_EBADFLAGS, 260);
IS(FI_ENOCQ, 263);
IS(FI_ETRUNC, 265);
IS(FI_ENOKEY, 266);
IS(FI_ENOAV, 267);
